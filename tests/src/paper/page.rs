//! The page of the paper's experiments: Figures 2 and 3 as pictures, the tables and every cell below; one self-contained file.

use std::fmt::Write as _;

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::figures::{Figure2, Figure3, PAPER_GROWTH, PAPER_SITE};
use super::tables::{Accuracy, Tables};
use super::{Compared, Played};
use crate::figures::float;
use crate::report::{STYLE, label, ticks};
use crate::sweep::settings::Point;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 12.0;
const PLOT: f64 = 250.0;

/// What the page is made from.
pub(super) struct Page<'a> {
    pub(super) base: Point,
    pub(super) played: &'a [Played],
    pub(super) compared: &'a [Compared],
    pub(super) tables: &'a Tables,
    pub(super) figure2: &'a Figure2,
    pub(super) figure3: &'a Figure3,
    pub(super) verdict: &'a [String],
}

/// One line of a plot.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
}

/// The whole page.
pub(super) fn page(page: &Page<'_>) -> String {
    let layouts: Vec<&String> = page.figure2.keys().collect();
    let markup = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Landfall: the paper's experiments" }
                style { (PreEscaped(STYLE)) }
            }
            body { main {
                h1 { "The paper's experiments, in the lab" }
                p.soft { "Real agents in an emulated network; every cell is below. Settings: tests/experiments.toml." }
                section.card { h2 { "What it came to" } ul { @for line in page.verdict { li { (line) } } } }
                @for layout in layouts { (growth(page, layout)) (sites(page, layout)) }
                (accuracy("Table 1: accuracy by dimensions", &page.tables.table1))
                (accuracy("Table 2: accuracy by dimensions and landmarks", &page.tables.table2))
                (cells(page))
            } }
        }
    };
    markup.into_string()
}

/// Figure 2 on one layout: the first seed of the base cell that is not void.
fn growth(page: &Page<'_>, layout: &str) -> Markup {
    let of = |one: &&Played| one.cell.layout == layout && one.cell.point == page.base && one.came.void.is_none();
    let mut curves: Vec<Curve> = Vec::new();
    for one in page.played.iter().filter(of) {
        if curves.iter().all(|curve| curve.name != one.cell.strategy) {
            curves.push(Curve { name: one.cell.strategy.clone(), points: one.came.growth.curve.clone() });
        }
    }
    let paper = PAPER_GROWTH.map(|(name, growth)| format!("{name} {growth}"));
    html! { figure {
        h2 { "Figure 2, " (layout) ": throughput over time" }
        figcaption {
            "Megabytes that had arrived, by seconds since the first lease, in the base cell. Medians of all unthrottled cells, MB/min: "
            @for (name, one) in page.figure2.get(layout).into_iter().flatten() { (name) " " (format!("{:.1}", one.mb_per_min)) "; " }
            "the paper's: " (paper.join(", ")) "."
        }
        (plot(&curves, "s", "MB"))
    } }
}

/// Figure 3 on one layout, as a distribution over sites.
fn sites(page: &Page<'_>, layout: &str) -> Markup {
    let Some(sites) = page.figure3.get(layout) else { return html! {} };
    let curve = |(name, rates): (&String, &Vec<f64>)| {
        let mut sorted = rates.clone();
        sorted.sort_by(f64::total_cmp);
        let count = float(sorted.len().max(1));
        let points = sorted.into_iter().enumerate().map(|(rank, rate)| (rate, 100.0 * float(rank + 1) / count));
        Curve { name: name.clone(), points: points.collect() }
    };
    let curves: Vec<Curve> = sites.mb_per_min.iter().map(curve).collect();
    let ratio = |name: &str| sites.ratio.get(name).map_or("none".to_owned(), |ratio| format!("{ratio:.2}"));
    html! { figure {
        h2 { "Figure 3, " (layout) ": single sites" }
        figcaption {
            "Share of sites (%) that gave at most so many MB/min, under random and Top-3. Site by site Top-3 gave " (ratio("p50"))
            " times random's (median; 5 %: " (ratio("p5")) ", 95 %: " (ratio("p95")) "). The paper's one site: " (PAPER_SITE[0].1) " and "
            (PAPER_SITE[1].1) " MB/min, " (format!("{:.1}", PAPER_SITE[1].1 / PAPER_SITE[0].1)) " times."
        }
        (plot(&curves, "MB/min", "% of sites"))
    } }
}

fn plot(curves: &[Curve], x_unit: &str, y_unit: &str) -> Markup {
    let most = |of: fn(&(f64, f64)) -> f64| {
        curves.iter().flat_map(|curve| &curve.points).map(of).fold(0.0, f64::max).max(1e-9)
    };
    let (x_most, y_most) = (most(|point| point.0), most(|point| point.1));
    let x = |value: f64| LEFT + value / x_most * (WIDTH - LEFT - 20.0);
    let y = |value: f64| TOP + PLOT - value / y_most * (PLOT - 10.0);
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } role="img" aria-label=(y_unit) {
            @for tick in ticks(x_most) {
                line.grid x1=(px(x(tick))) x2=(px(x(tick))) y1=(px(TOP)) y2=(px(TOP + PLOT)) {}
                text x=(px(x(tick))) y=(px(TOP + PLOT + 18.0)) text-anchor="middle" { (label(tick)) " " (x_unit) }
            }
            @for tick in ticks(y_most) {
                line.grid x1=(px(LEFT)) x2=(px(WIDTH - 20.0)) y1=(px(y(tick))) y2=(px(y(tick))) {}
                text x=(px(LEFT - 8.0)) y=(px(y(tick) + 4.0)) text-anchor="end" { (label(tick)) }
            }
            text.strong x=(px(LEFT)) y=(px(TOP)) { (y_unit) }
            @for (index, curve) in curves.iter().enumerate() {
                path d=(path(curve, &x, &y)) fill="none" stroke={ "var(--c" (index) ")" } stroke-width="2" stroke-linejoin="round" {}
            }
        }
        ul.legend { @for (index, curve) in curves.iter().enumerate() {
            li { i style={ "background: var(--c" (index) ")" } {} (curve.name) }
        } }
    }
}

fn path(curve: &Curve, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) -> String {
    let mut path = format!("M{} {}", px(x(0.0)), px(y(0.0)));
    for (across, up) in &curve.points {
        // Writing into a string cannot fail.
        let _ = write!(path, "L{} {}", px(x(*across)), px(y(*up)));
    }
    path
}

fn accuracy(title: &str, rows: &[Accuracy]) -> Markup {
    let shown = |value: Option<f64>| value.map_or("none".to_owned(), |value| format!("{value:.3}"));
    html! { section.card {
        h2 { (title) }
        table {
            tr { th { "layout" } th { "dims" } th { "landmarks" } th { "without worst 30 %" } th { "paper" } th { "without worst 20 %" }
                th { "paper" } }
            @for row in rows { tr {
                td { (row.layout) } td { (row.dims) } td { (row.landmarks) } td { (shown(row.without_worst_30)) }
                td { (shown(Some(row.paper_without_worst_30))) } td { (shown(row.without_worst_20)) }
                td { (shown(Some(row.paper_without_worst_20))) }
            } }
        }
    } }
}

fn cells(page: &Page<'_>) -> Markup {
    html! { section.card {
        h2 { "Every cell" }
        p.soft { "In brackets: what the simulation of the same cell gives, as a share of the lab's." }
        table {
            tr { th { "layout" } th { "seed" } th { "loss" } th { "page KB" } th { "requests/s" } th { "Mbit/s" } th { "strategy" }
                th { "MB/min" } th { "makespan s" } th { "" } }
            @for (one, compared) in page.played.iter().zip(page.compared) { tr {
                td { (one.cell.layout) } td { (one.cell.seed) } td { "x" (one.cell.point.loss) } td { (one.cell.point.page_kb) }
                td { (one.cell.point.per_site_rps.0.map_or("unthrottled".to_owned(), |rate| rate.to_string())) }
                td { (one.cell.point.access_mbit) } td { (one.cell.strategy) }
                td { (format!("{:.1} ({:.2})", one.came.growth.mb_per_min, compared.growth)) }
                td { (format!("{:.1} ({:.2})", one.came.makespan_s, compared.makespan)) }
                td { (one.came.void.clone().map_or(String::new(), |reason| format!("void: {reason}"))) }
            } }
        }
    } }
}

fn px(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::figures::{figure2, figure3};
    use super::super::tests::played;
    use super::*;

    #[test]
    fn a_page_has_both_figures_and_every_cell() {
        let played = [played("random", 1, 100.0, None), played("gnp-top3", 1, 150.0, Some("the <lab> was late"))];
        let compared = [Compared { growth: 1.02, makespan: 0.98 }; 2];
        let base = played[0].cell.point;
        let tables = Tables { table1: Vec::new(), table2: Vec::new() };
        let (figure2, mut figure3) = (figure2(&played), figure3(&played, base));
        let sites = super::super::figures::SingleSites {
            mb_per_min: BTreeMap::from([("random".to_owned(), vec![1.0, 0.5])]),
            quantiles: BTreeMap::new(),
            ratio: BTreeMap::new(),
        };
        figure3.insert("paper".to_owned(), sites);
        let (figure2, figure3) = (&figure2, &figure3);
        let (tables, verdict) = (&tables, &[] as &[String]);
        let text = page(&Page { base, played: &played, compared: &compared, tables, figure2, figure3, verdict });
        assert_eq!(text.matches("<svg").count(), 2);
        assert!(text.contains("100.0 (1.02)") && text.contains("void: the &lt;lab&gt; was late"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }
}
