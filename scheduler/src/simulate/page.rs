//! The HTML page of a simulation: the settings, a table of all strategies, and plots. The page is a
//! single file without scripts, and depends only on the results.

use maud::{Markup, html};

use super::{ContenderScore, Distributions, LeftOut, Report, Settings};
use crate::model::Strategy;
use crate::model::stats::count;
use crate::plot::{Axis, Bar, Curve, STYLE, bars, document, lines};

/// Maximum relative error drawn. The caption states the share of larger errors.
const WORST_DRAWN: f64 = 1.0;
const NEAREST: &str = "nearest agent";

#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    pub matrix: &'a str,
    /// The name of the nodes' file, if one was given.
    pub nodes: Option<&'a str>,
    pub settings: &'a Settings,
    pub report: &'a Report,
    pub distributions: &'a Distributions,
}

pub fn page(page: &Page<'_>) -> String {
    let body = html! {
        h1 { "Strategies on " (page.matrix) }
        p.soft { "Simulated on measured round trips: some nodes are agents, every other node is a site that only landmarks measured." }
        (asked(page))
        (score_table(page))
        (round_trips(page))
        (excess(page))
        (errors(page))
        (learning(page))
    };
    document(&format!("Landfall: strategies on {}", page.matrix), STYLE, &body)
}

fn asked(page: &Page<'_>) -> Markup {
    let Page { settings, report, .. } = page;
    let nodes = page.nodes.unwrap_or("only their round trips");
    let rows = [
        ("matrix", format!("{}, {} nodes", page.matrix, report.nodes)),
        ("data of the nodes", nodes.to_owned()),
        ("seeds", format!("{} to {}: agents are drawn anew for each", report.first_seed, report.last_seed())),
        ("agents", report.agents.to_string()),
        ("landmarks", format!("{}, election {}", report.landmarks, report.election)),
        ("sites", format!("{} in all seeds", report.sites)),
        ("map", report.map()),
        ("confirming agents", settings.confirm.to_string()),
        ("crawls of each site", settings.crawls.to_string()),
    ];
    html! { section { h2 { "Settings" } dl { @for (name, value) in rows { dt { (name) } dd { (value) } } } } }
}

fn score_table(page: &Page<'_>) -> Markup {
    let report = page.report;
    let shown =
        |figure: Option<f64>, digits: usize| figure.map_or("–".to_owned(), |figure| format!("{figure:.digits$}"));
    let excess = |score: &ContenderScore| Some(score.mean_rtt_ms? - report.oracle_rtt_ms?);
    html! { section {
        h2 { "Every strategy" }
        p.soft {
            "Mean true round trip to the chosen agent, over sites; excess over the nearest agent; stretch, the mean \
             over the nearest agents' mean; "
            "measurements and confirmations; and how unevenly sites went to agents (standard deviation over mean)."
        }
        table {
            tr { th { "strategy" } th.n { "mean rtt, ms" } th.n { "excess, ms" } th.n { "stretch" } th.n { "probes a site" } th.n { "load cv" } th { "" } }
            tr { td { "(nearest agent)" } td.n { (shown(report.oracle_rtt_ms, 1)) } td.n { "0.0" } td.n { "1.000" } td.n {} td.n {} td {} }
            @for score in &report.strategies { tr {
                td { (score.name) }
                td.n { (shown(score.mean_rtt_ms, 1)) } td.n { (shown(excess(score), 1)) } td.n { (shown(score.stretch, 3)) }
                td.n { (shown(score.probes_per_site, 1)) } td.n { (shown(score.load_cv, 2)) }
                td.soft { @if score.fallbacks > 0 { "drew at random for " (score.fallbacks) " sites without data" } }
            } }
            @for left in &report.left_out { tr {
                td { (left.name) } td.n { "–" } td.n { "–" } td.n { "–" } td.n { "–" } td.n { "–" } td.soft { (why(left)) }
            } }
        }
    } }
}

fn why(left: &LeftOut) -> String {
    left.lacks.map_or("not requested".to_owned(), |lacks| format!("left out: it needs {lacks}, which no node has"))
}

/// Draws a sorted list of quantiles as a curve. The curve's height at a value is the percentage of
/// all values that do not exceed this value. Returns `None` if there are no data.
fn curve(name: &str, class: &str, quantiles: &[f64]) -> Option<Curve> {
    let steps = count(quantiles.len().checked_sub(1).filter(|last| *last > 0)?);
    let points = quantiles.iter().enumerate().map(|(step, value)| (*value, 100.0 * count(step) / steps)).collect();
    Some(Curve { name: name.to_owned(), class: class.to_owned(), points, marked: false })
}

fn round_trips(page: &Page<'_>) -> Markup {
    let Page { settings, distributions, .. } = page;
    let of = |(strategy, quantiles): (&Strategy, &Vec<f64>)| {
        let name = strategy.to_string();
        curve(&name, &name, quantiles)
    };
    let mut curves: Vec<Curve> = settings.strategies.iter().zip(&distributions.taken).filter_map(of).collect();
    curves.extend(curve(NEAREST, "nearest", &distributions.nearest));
    let all = || curves.iter().flat_map(|curve| &curve.points).map(|point| point.0);
    let across = Axis::ratios("round trip, ms", all().fold(f64::INFINITY, f64::min), all().fold(0.0, f64::max));
    html! { figure {
        h2 { "Round trips to the agents that each strategy chooses" }
        figcaption {
            "Share of sites whose agent is at most this many milliseconds away; a curve farther left is better. Where \
             a strategy draws evenly "
            "among several agents, each counts proportionally. The horizontal scale is logarithmic."
        }
        (lines("Share of sites by round trip to the chosen agent", &across, &Axis::linear("sites, %", 100.0), &curves))
    } }
}

fn excess(page: &Page<'_>) -> Markup {
    let report = page.report;
    let bar = |score: &ContenderScore| {
        let value = score.mean_rtt_ms.zip(report.oracle_rtt_ms).map(|(mean, nearest)| mean - nearest);
        Bar { name: score.name.clone(), class: score.name.clone(), value }
    };
    let drawn: Vec<Bar> = report.strategies.iter().map(bar).collect();
    let most = drawn.iter().filter_map(|bar| bar.value).fold(0.0, f64::max);
    html! { figure {
        h2 { "Mean excess over the nearest agent" }
        figcaption { "How much farther the chosen agents are than the nearest ones, on average over sites of all seeds." }
        (bars("Mean excess by strategy", &Axis::linear("excess, ms", most), &drawn))
    } }
}

fn errors(page: &Page<'_>) -> Markup {
    let Page { report, distributions, .. } = page;
    let errors = &distributions.errors;
    let Some(curve) = curve("relative error", "gnp-top1", errors) else {
        return html! { figure { h2 { "Errors of prediction" } figcaption { "No distance was predicted." } } };
    };
    let drawn = Curve {
        points: curve
            .points
            .into_iter()
            .take_while(|point| point.0 <= WORST_DRAWN)
            .map(|(error, share)| (100.0 * error, share))
            .collect(),
        ..curve
    };
    let beyond = 100.0 - drawn.points.last().map_or(0.0, |point| point.1);
    let shown = |error: Option<f64>| error.map_or("–".to_owned(), |error| format!("{:.1} %", 100.0 * error));
    html! { figure {
        h2 { "Errors of prediction" }
        figcaption {
            "Share of the " (report.pairs) " pairs of a site and an agent that is no landmark whose relative error, |predicted − measured| / measured, is no "
            "greater. Median " (shown(report.estimate.re50)) ", 90th percentile " (shown(report.estimate.re90)) "; at most "
            (format!("{beyond:.1}")) " % of the pairs are beyond 100 %."
        }
        (lines("Share of pairs by relative error", &Axis::linear("relative error, %", 100.0 * WORST_DRAWN), &Axis::linear("pairs, %", 100.0), &[drawn]))
    } }
}

fn learning(page: &Page<'_>) -> Markup {
    let learned = |score: &&ContenderScore| score.excess_ms.len() > 1;
    let curve = |score: &ContenderScore| {
        let points = (1..).zip(&score.excess_ms).map(|(crawl, excess)| (count(crawl), *excess)).collect();
        Curve { name: score.name.clone(), class: score.name.clone(), points, marked: true }
    };
    let curves: Vec<Curve> = page.report.strategies.iter().filter(learned).map(curve).collect();
    if curves.is_empty() {
        return html! {};
    }
    let most = curves.iter().flat_map(|curve| &curve.points).map(|point| point.1).fold(0.0, f64::max);
    let across = Axis::counted("crawl of the same sites", page.settings.crawls);
    html! { figure {
        h2 { "What crawls teach" }
        figcaption {
            "Mean excess over the nearest agent in each crawl of the same sites, without further probes: the median \
             over seeds. Strategies that do not use "
            "predicted distances learn nothing."
        }
        (lines("Excess by crawl", &across, &Axis::linear("excess, ms", most), &curves))
    } }
}
