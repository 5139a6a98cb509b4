//! Draws the charts of the report: the embedding as a map, the crawled sites with one bar per
//! agent, predicted against true round trips, and throughput and concurrent crawls over time.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use landfall_scheduler::gnp::project;
use landfall_scheduler::model::Strategy;
use landfall_scheduler::plot::map::{AgentMark, Groups, Plane, SiteMark, colour, draw, legend};
use landfall_scheduler::plot::{Axis, Curve, label, lines, px};
use maud::{Markup, html};

use super::targets::Target;
use crate::evidence::batch_record::BatchRecord;
use crate::evidence::check::Check;
use crate::evidence::figures::{Figures, float};
use crate::world::scenario::Scenario;

#[derive(Debug)]
pub struct ReportInput<'a> {
    pub scenario: &'a Scenario,
    pub record: &'a BatchRecord,
    pub figures: &'a Figures,
    pub targets: &'a [Target],
    pub checks: &'a [Check],
    /// The sites' names as submitted, by site index.
    pub sites: &'a [String],
    pub strategy: Strategy,
    pub took: Duration,
    /// Why the run's times are unreliable; `None` if they are reliable.
    pub busy: Option<&'a str>,
}

pub(super) fn embedding_map(run: &ReportInput<'_>, groups: &Groups) -> Markup {
    let Some((agents, sites, explained)) = marks(run) else {
        return html! { figure { h2 { "The map" } figcaption { "There is no embedding: measured distance decided." } } };
    };
    let (drawing, outside) = draw(Plane::Network, true, &agents, &sites, groups);
    html! { figure {
        h2 { "The map" }
        figcaption {
            "The embedding, projected on the two directions in which hosts differ most (" (format!("{:.0} %", explained * 100.0))
            " of the variance; access delays are not drawn). A line joins each site to the agent that crawled it, in that "
            "agent's colour. Large dots are agents, ringed dots are landmarks."
            @if outside > 0 { " Hosts beyond the frame are drawn on its edge: " (outside) "." }
        }
        (drawing)
        (groups.legend())
    } }
}

/// The marks of all placed agents and sites, and the fraction of the variance that the two plotted
/// directions show.
fn marks<'a>(run: &ReportInput<'a>) -> Option<(Vec<AgentMark<'a>>, Vec<SiteMark<'a>>, f64)> {
    let map = run.record.embedding.as_ref()?;
    let dimensions = map.embedding.dimensions();
    let placements = map.agents.values().chain(map.sites.values());
    let places: Vec<&[f64]> = placements.filter_map(|placement| placement.coordinate.get(..dimensions)).collect();
    if places.is_empty() || places.len() != map.agents.len() + map.sites.len() {
        return None;
    }
    let (projected, explained) = project(&places, dimensions);
    let mark = |(name, at): (&'a String, &[f64; 2])| {
        let landmark = run.record.landmarks.contains(name);
        let tooltip = if landmark { format!("{name}, a landmark") } else { name.clone() };
        AgentMark { name, at: *at, landmark, tooltip, href: None }
    };
    let agents = map.agents.keys().zip(&projected).map(mark).collect();
    let sites = map.sites.keys().zip(projected.iter().skip(map.agents.len())).map(|(name, at)| {
        let agent = run.record.tasks.iter().find(|task| task.site == *name).and_then(|task| task.crawler.as_deref());
        SiteMark { at: *at, agent, tooltip: format!("{name}, crawled by {}", agent.unwrap_or("nobody")) }
    });
    Some((agents, sites.collect(), explained))
}

const BARS_WIDTH: f64 = 1000.0;
const BARS_LEFT: f64 = 190.0;
const BARS_RIGHT: f64 = 150.0;
const ROW: f64 = 20.0;
const BARS_TOP: f64 = 26.0;
/// Maximum number of carriers by which bars are split. If there are more carriers, bars are not
/// split.
const MAX_CARRIERS: usize = 8;

struct Bar<'a> {
    agent: &'a str,
    parts: Vec<usize>,
    megabytes: f64,
    mean_ms: Option<f64>,
}

pub(super) fn sites_per_agent(run: &ReportInput<'_>) -> Markup {
    let carriers = carriers(run);
    let bars = bars(run, &carriers);
    let most = bars.iter().map(|bar| bar.parts.iter().sum::<usize>()).max().unwrap_or(0).max(1);
    let axis = Axis::linear("sites", float(most));
    let x = |sites: f64| BARS_LEFT + axis.place(sites) * (BARS_WIDTH - BARS_LEFT - BARS_RIGHT);
    let height = BARS_TOP + ROW * float(bars.len()) + 8.0;
    html! { figure {
        h2 { "Who crawls what" }
        figcaption {
            "Sites crawled by each agent" @if carriers.len() > 1 { ", coloured by the site's carrier" }
            "; beside each bar the megabytes, and the mean emulated round trip to its sites."
        }
        svg viewBox={ "0 0 " (BARS_WIDTH) " " (height) } role="img" aria-label="Sites crawled by each agent" {
            title { "Sites crawled by each agent" }
            @for &tick in &axis.ticks {
                line.grid x1=(px(x(tick))) x2=(px(x(tick))) y1=(px(BARS_TOP - 6.0)) y2=(px(height)) {}
                text x=(px(x(tick))) y="14" text-anchor="middle" { (label(tick)) }
            }
            @for (row, bar) in bars.iter().enumerate() {
                @let y = BARS_TOP + ROW * float(row);
                text x=(px(BARS_LEFT - 10.0)) y=(px(y + 13.0)) text-anchor="end" { (bar.agent) }
                @for (rank, (begin, count)) in starts(&bar.parts).enumerate() {
                    @if count > 0 {
                        @let (left, right) = (x(float(begin)), x(float(begin + count)));
                        rect x=(px(left)) y=(px(y + 2.0)) width=(px(right - left - 1.0))
                            height=(px(ROW - 5.0)) rx="2" fill=(colour(rank)) {
                            title { (bar.agent) ": " (count) " sites" @if carriers.len() > 1 { " on " (carriers[rank]) } }
                        }
                    }
                }
                @let sites: usize = bar.parts.iter().sum();
                text x=(px(x(float(sites)) + 8.0)) y=(px(y + 13.0)) {
                    (sites)
                    @if let Some(mean) = bar.mean_ms { " · " (format!("{:.1} MB · {mean:.0} ms", bar.megabytes)) }
                }
            }
        }
        @if carriers.len() > 1 {
            (legend(&carriers.iter().enumerate().map(|(rank, name)| (colour(rank), (*name).to_owned())).collect::<Vec<_>>()))
        }
    } }
}

/// The carriers by which bars are split. If there are more than [`MAX_CARRIERS`], the result is one
/// carrier without a name.
fn carriers<'a>(run: &ReportInput<'a>) -> Vec<&'a str> {
    let all: BTreeSet<&str> = run.scenario.sites.iter().map(|site| site.carrier.as_str()).collect();
    if all.len() > MAX_CARRIERS { vec![""] } else { all.into_iter().collect() }
}

fn bars<'a>(run: &ReportInput<'a>, carriers: &[&str]) -> Vec<Bar<'a>> {
    let mut bars: Vec<Bar<'a>> = run
        .scenario
        .agents
        .iter()
        .enumerate()
        .map(|(agent_index, agent)| {
            let mut bar = Bar { agent: &agent.name, parts: vec![0; carriers.len()], megabytes: 0.0, mean_ms: None };
            let mut total_ms = 0.0;
            for task in run.record.tasks.iter().filter(|task| task.crawler.as_ref() == Some(&agent.name)) {
                let Some(site) = run.sites.iter().position(|name| *name == task.site) else { continue };
                let carrier = run.scenario.sites[site].carrier.as_str();
                bar.parts[carriers.iter().position(|name| *name == carrier).unwrap_or(0)] += 1;
                bar.megabytes += f64::from(u32::try_from(task.bytes).unwrap_or(u32::MAX)) / 1e6;
                total_ms += run.scenario.paths[agent_index][site].rtt_ms;
            }
            let sites: usize = bar.parts.iter().sum();
            bar.mean_ms = (sites > 0).then(|| total_ms / float(sites));
            bar
        })
        .collect();
    bars.sort_by_key(|bar| std::cmp::Reverse(bar.parts.iter().sum::<usize>()));
    bars
}

/// The start and the length of each part of a bar. The start is the sum of the parts before it.
fn starts(parts: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    parts.iter().scan(0, |end, &count| {
        let begin = *end;
        *end += count;
        Some((begin, count))
    })
}

const SCATTER_SIDE: f64 = 560.0;
const SCATTER_LEFT: f64 = 56.0;
const SCATTER_BOTTOM: f64 = 44.0;
const SCATTER_RIGHT: f64 = 14.0;
/// Maximum relative error of the predictions inside the shaded band.
const BAND: f64 = 0.15;

pub(super) fn accuracy(run: &ReportInput<'_>) -> Markup {
    let predictions = &run.figures.predictions;
    if predictions.is_empty() {
        return html! {};
    }
    let values = || predictions.iter().flat_map(|one| [one.true_ms, one.predicted_ms]);
    // Both axes have the same range, so that exact predictions are on the diagonal.
    let least = values().fold(f64::INFINITY, f64::min).max(1.0);
    let axis = Axis::ratios("ms", least, values().fold(least * 2.0, f64::max));
    let x = |millis: f64| px(SCATTER_LEFT + axis.place(millis) * (SCATTER_SIDE - SCATTER_LEFT - SCATTER_RIGHT));
    let floor = SCATTER_SIDE - SCATTER_BOTTOM;
    let y = |millis: f64| px(floor - axis.place(millis) * (floor - SCATTER_RIGHT));
    let mut dots = String::new();
    for one in predictions {
        // Writing to a string never fails.
        let _ = write!(dots, "M{} {}h0", x(one.true_ms), y(one.predicted_ms));
    }
    let (low, high) = axis.range;
    let band = format!(
        "M{} {}L{} {}L{} {}L{} {}Z",
        x(low),
        y(low * (1.0 - BAND)),
        x(high),
        y(high * (1.0 - BAND)),
        x(high / (1.0 + BAND)),
        y(high),
        x(low),
        y(low * (1.0 + BAND))
    );
    let error =
        |share| run.figures.relative_error(share).map_or("–".to_owned(), |error| format!("{:.1} %", error * 100.0));
    html! { figure {
        h2 { "Predicted and true distance" }
        figcaption {
            "Each dot is a site and an agent that never measured it: " (predictions.len()) " pairs, landmarks left out. Half of the "
            "predictions are within " (error(0.5)) " of the emulated round trip, nine tenths within " (error(0.9))
            ". The band is ±15 %; both scales are logarithmic, in milliseconds."
        }
        svg viewBox={ "0 0 " (SCATTER_SIDE) " " (SCATTER_SIDE) } style="max-width:640px;margin:0 auto" role="img" aria-label="Predicted against true round trip" {
            title { "Predicted against true round trip, in milliseconds" }
            @for &tick in &axis.ticks {
                line.grid x1=(x(tick)) x2=(x(tick)) y1=(SCATTER_RIGHT) y2=(floor) {}
                line.grid x1=(SCATTER_LEFT) x2=(SCATTER_SIDE - SCATTER_RIGHT) y1=(y(tick)) y2=(y(tick)) {}
                text x=(x(tick)) y=(floor + 16.0) text-anchor="middle" { (label(tick)) }
                text x=(SCATTER_LEFT - 8.0) y=(y(tick)) dy="4" text-anchor="end" { (label(tick)) }
            }
            path d=(band) fill="var(--accent)" fill-opacity="0.12" {}
            path d={ "M" (x(low)) " " (y(low)) "L" (x(high)) " " (y(high)) } stroke="var(--soft)" stroke-dasharray="4 4" fill="none" {}
            path d=(dots) stroke="var(--accent)" stroke-opacity="0.35" stroke-width="3.4" stroke-linecap="round" fill="none" {}
            text x=((SCATTER_LEFT + SCATTER_SIDE) / 2.0) y=(SCATTER_SIDE - 8.0) text-anchor="middle" { "emulated round trip" }
            text transform={ "translate(14 " (floor / 2.0) ") rotate(-90)" } text-anchor="middle" { "predicted round trip" }
        }
    } }
}

/// Number of equal time slices, from the first crawl's start to the last crawl's end.
const SLICES: usize = 120;

/// A crawl. Times are in seconds since the first crawl began.
struct Crawl {
    begin_s: f64,
    end_s: f64,
    megabytes: f64,
}

pub(super) fn throughput(run: &ReportInput<'_>) -> Markup {
    let crawls = crawls(run);
    let total_s = crawls.iter().map(|crawl| crawl.end_s).fold(0.0, f64::max);
    if total_s <= 0.0 {
        return html! {};
    }
    let slice_s = total_s / float(SLICES);
    let (rate, active) = slices(&crawls, slice_s);
    let plot = |title: &str, unit: &str, class: &str, values: &[f64]| {
        let middles = (0..SLICES).map(|slice| (float(slice) + 0.5) * slice_s);
        let (name, class) = (title.to_owned(), class.to_owned());
        let curve = Curve { name, class, points: middles.zip(values.iter().copied()).collect(), marked: false };
        let most = values.iter().copied().fold(0.0, f64::max);
        lines(title, &Axis::linear("seconds", total_s), &Axis::linear(unit, most), &[curve])
    };
    html! { figure {
        h2 { "Throughput over time" }
        figcaption {
            "Megabytes a minute, and sites being crawled, from the first crawl's begin. Each crawl's bytes are spread evenly over its "
            "own duration; a slice is " (format!("{slice_s:.1}")) " s."
        }
        (plot("Megabytes a minute", "MB/min", "c0", &rate))
        (plot("Sites being crawled", "sites at once", "c3", &active))
    } }
}

fn crawls(run: &ReportInput<'_>) -> Vec<Crawl> {
    let begun = run.record.tasks.iter().filter_map(|task| task.started_at).min();
    let tasks = run.record.tasks.iter().filter_map(|task| Some((task, task.started_at?, begun?)));
    tasks
        .map(|(task, started, begun)| {
            let begin_s = (started - begun).to_std().unwrap_or_default().as_secs_f64();
            let took_s = f64::from(u32::try_from(task.duration_ms).unwrap_or(0)) / 1e3;
            let megabytes = f64::from(u32::try_from(task.bytes).unwrap_or(u32::MAX)) / 1e6;
            Crawl { begin_s, end_s: begin_s + took_s.max(1e-3), megabytes }
        })
        .collect()
}

/// The megabytes per minute and the mean number of concurrent crawls in each slice.
fn slices(crawls: &[Crawl], slice_s: f64) -> (Vec<f64>, Vec<f64>) {
    (0..SLICES)
        .map(|slice| {
            let (from, to) = (float(slice) * slice_s, float(slice + 1) * slice_s);
            let overlap = |crawl: &Crawl| (crawl.end_s.min(to) - crawl.begin_s.max(from)).max(0.0);
            let megabytes: f64 =
                crawls.iter().map(|crawl| crawl.megabytes * overlap(crawl) / (crawl.end_s - crawl.begin_s)).sum();
            (megabytes / slice_s * 60.0, crawls.iter().map(overlap).sum::<f64>() / slice_s)
        })
        .unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_keep_every_byte() {
        let crawls =
            [Crawl { begin_s: 0.0, end_s: 12.0, megabytes: 6.0 }, Crawl { begin_s: 3.3, end_s: 3.4, megabytes: 1.0 }];
        let slice_s = 12.0 / float(SLICES);
        let (rate, active) = slices(&crawls, slice_s);
        let bytes: f64 = rate.iter().map(|rate| rate / 60.0 * slice_s).sum();
        assert!((bytes - 7.0).abs() < 1e-9, "{bytes}");
        let busy: f64 = active.iter().map(|active| active * slice_s).sum();
        assert!((busy - 12.1).abs() < 1e-9, "{busy}");
    }
}
