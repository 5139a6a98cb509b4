//! The report of the paper's experiments: one self-contained HTML page with both figures, the
//! tables, and every cell.

use landfall_scheduler::plot::{Axis, Curve, document, lines};
use maud::{Markup, html};

use super::figures::{Figure2, Figure3, PAPER_GROWTH, PAPER_SITE};
use super::lab_cells::FinishedCell;
use super::simulated::SimulationRatios;
use super::tables::{AccuracyRow, Tables};
use crate::demo::report_page::style;
use crate::evidence::figures::float;
use crate::experiments::sweep::settings::Point;

/// The classes of curves in the style sheet.
const CLASSES: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];

pub(super) struct Page<'a> {
    pub(super) base: Point,
    pub(super) finished: &'a [FinishedCell],
    pub(super) ratios: &'a [Option<SimulationRatios>],
    pub(super) tables: &'a Tables,
    pub(super) figure2: &'a Figure2,
    pub(super) figure3: &'a Figure3,
    pub(super) verdict: &'a [String],
}

pub(super) fn page(page: &Page<'_>) -> String {
    let layouts: Vec<&String> = page.figure2.keys().collect();
    let body = html! {
        h1 { "The paper's experiments, in the lab" }
        p.soft { "Real agents in an emulated network; every cell is below. Settings: tests/experiments.toml." }
        section.card { h2 { "What it came to" } ul { @for line in page.verdict { li { (line) } } } }
        @for layout in layouts { (growth(page, layout)) (sites(page, layout)) }
        (accuracy("Table 1: accuracy by dimensions", &page.tables.table1))
        (accuracy("Table 2: accuracy by dimensions and landmarks", &page.tables.table2))
        (cells(page))
    };
    document("Landfall: the paper's experiments", &style(), &body)
}

/// Draws Figure 2 for a layout. Each strategy's curve is from the first seed whose base cell is
/// valid.
fn growth(page: &Page<'_>, layout: &str) -> Markup {
    let of =
        |one: &&FinishedCell| one.cell.layout == layout && one.cell.point == page.base && one.result.void.is_none();
    let mut curves: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for one in page.finished.iter().filter(of) {
        if curves.iter().all(|(name, _)| *name != one.cell.strategy) {
            curves.push((one.cell.strategy.clone(), one.result.growth.curve.clone()));
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
        (plot("Throughput over time", curves, "s", "MB"))
    } }
}

/// Draws Figure 3 for a layout: the distribution of the rates over the sites.
fn sites(page: &Page<'_>, layout: &str) -> Markup {
    let Some(sites) = page.figure3.get(layout) else { return html! {} };
    let curve = |(name, rates): (&String, &Vec<f64>)| {
        let mut sorted = rates.clone();
        sorted.sort_by(f64::total_cmp);
        let count = float(sorted.len().max(1));
        let points = sorted.into_iter().enumerate().map(|(rank, rate)| (rate, 100.0 * float(rank + 1) / count));
        (name.clone(), points.collect())
    };
    let curves: Vec<(String, Vec<(f64, f64)>)> = sites.mb_per_min.iter().map(curve).collect();
    let ratio = |name: &str| sites.ratio.get(name).map_or("none".to_owned(), |ratio| format!("{ratio:.2}"));
    html! { figure {
        h2 { "Figure 3, " (layout) ": single sites" }
        figcaption {
            "Share of sites (%) that gave at most so many MB/min, under random and Top-3. Site by site Top-3 gave " (ratio("p50"))
            " times random's (median; 5 %: " (ratio("p5")) ", 95 %: " (ratio("p95")) "). The paper's one site: " (PAPER_SITE[0].1) " and "
            (PAPER_SITE[1].1) " MB/min, " (format!("{:.1}", PAPER_SITE[1].1 / PAPER_SITE[0].1)) " times."
        }
        (plot("Single sites", curves, "MB/min", "% of sites"))
    } }
}

/// Plots named curves, which all start at the origin.
fn plot(title: &str, curves: Vec<(String, Vec<(f64, f64)>)>, across: &str, up: &str) -> Markup {
    let most = |of: fn(&(f64, f64)) -> f64| curves.iter().flat_map(|(_, points)| points).map(of).fold(0.0, f64::max);
    let axes = (Axis::linear(across, most(|point| point.0)), Axis::linear(up, most(|point| point.1)));
    let curve = |((name, points), class): (_, &str)| {
        let points = [vec![(0.0, 0.0)], points].concat();
        Curve { name, class: class.to_owned(), points, marked: false }
    };
    let curves: Vec<Curve> = curves.into_iter().zip(CLASSES.into_iter().cycle()).map(curve).collect();
    lines(title, &axes.0, &axes.1, &curves)
}

fn accuracy(title: &str, rows: &[AccuracyRow]) -> Markup {
    let shown = |value: Option<f64>| value.map_or("none".to_owned(), |value| format!("{value:.3}"));
    html! { section.card {
        h2 { (title) }
        table {
            tr { th { "layout" } th { "tier" } th { "dims" } th { "landmarks" } th { "without worst 30 %" } th { "paper" } th { "without worst 20 %" }
                th { "paper" } }
            @for row in rows { tr {
                td { (row.layout) } td { (row.tier.name()) } td { (row.dims_shown()) } td { (row.landmarks) } td { (shown(row.without_worst_30)) }
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
            @for (one, ratios) in page.finished.iter().zip(page.ratios) { tr {
                td { (one.cell.layout) } td { (one.cell.seed) } td { "x" (one.cell.point.loss) } td { (one.cell.point.page_kb) }
                td { (one.cell.point.per_site_rps) }
                td { (one.cell.point.access_mbit) } td { (one.cell.strategy) }
                td { (compared(one.result.growth.mb_per_min, ratios.map(|ratios| ratios.growth))) }
                td { (compared(one.result.makespan_s, ratios.map(|ratios| ratios.makespan))) }
                td { (one.result.void.clone().map_or(String::new(), |reason| format!("void: {reason}"))) }
            } }
        }
    } }
}

/// The lab's figure, and in brackets the simulation's figure divided by the lab's figure.
fn compared(figure: f64, ratio: Option<f64>) -> String {
    ratio.map_or_else(|| format!("{figure:.1}"), |ratio| format!("{figure:.1} ({ratio:.2})"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::figures::{figure2, figure3};
    use super::super::lab_cells::tests::finished;
    use super::*;

    #[test]
    fn a_page_has_both_figures_and_all_cells() {
        let finished = [finished("random", 1, 100.0, None), finished("gnp-top3", 1, 150.0, Some("the <lab> was late"))];
        let ratios = [Some(SimulationRatios { growth: 1.02, makespan: 0.98 }), None];
        let base = finished[0].cell.point;
        let tables = Tables { table1: Vec::new(), table2: Vec::new() };
        let (figure2, mut figure3) = (figure2(&finished), figure3(&finished, base));
        let sites = super::super::figures::SingleSites {
            mb_per_min: BTreeMap::from([("random".to_owned(), vec![1.0, 0.5])]),
            quantiles: BTreeMap::new(),
            ratio: BTreeMap::new(),
        };
        figure3.insert("paper".to_owned(), sites);
        let (figure2, figure3) = (&figure2, &figure3);
        let (tables, verdict) = (&tables, &[] as &[String]);
        let text = page(&Page { base, finished: &finished, ratios: &ratios, tables, figure2, figure3, verdict });
        assert_eq!(text.matches("role=\"img\"").count(), 2);
        assert!(text.contains("100.0 (1.02)") && text.contains("void: the &lt;lab&gt; was late"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }
}
