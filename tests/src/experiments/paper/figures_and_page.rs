//! Figures 2 and 3: the throughput of each strategy over time, and the download rates of single
//! sites. The page is the report of the paper's experiments: one self-contained HTML page with both
//! figures, the tables and every cell. This module does no I/O.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use landfall_scheduler::plot::{Axis, Curve, document, lines};
use maud::{Markup, html};

use super::lab_cells::FinishedCell;
use super::simulated_cells::SimulationRatios;
use super::tables::{AccuracyRow, Tables};
use crate::demo::report_page::style;
use crate::evidence::figures::float;
use crate::experiments::sweep::results::{Group, groups, median};
use crate::experiments::sweep::settings::Point;

/// The classes of curves in the style sheet.
const CLASSES: [&str; 6] = ["c0", "c1", "c2", "c3", "c4", "c5"];

pub(super) struct Page<'a> {
    pub(super) base: Point,
    pub(super) finished: &'a [FinishedCell],
    pub(super) ratios: &'a [SimulationRatios],
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
                td { (compared(one.result.growth.mb_per_min, ratios.growth)) }
                td { (compared(one.result.makespan_s, ratios.makespan)) }
                td { (one.result.void.clone().map_or(String::new(), |reason| format!("void: {reason}"))) }
            } }
        }
    } }
}

/// The lab's figure, and in brackets the simulation's figure divided by the lab's figure.
fn compared(figure: f64, ratio: f64) -> String {
    format!("{figure:.1} ({ratio:.2})")
}

/// The values of the paper's Figure 2, in megabytes per minute.
const PAPER_GROWTH: [(&str, f64); 3] = [("random", 198.8), ("gnp-top1", 242.6), ("gnp-top3", 270.5)];
/// The values of the paper's Figure 3, for one site that was drawn at random, in megabytes per
/// minute.
const PAPER_SITE: [(&str, f64); 2] = [("random", 0.45), ("gnp-top3", 2.38)];
const QUANTILES: [(&str, f64); 5] = [("p5", 0.05), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p95", 0.95)];

/// The medians of a strategy over a layout's cells that do not limit the requests per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Throughput {
    mb_per_min: f64,
    makespan_s: f64,
}

/// The throughput, by layout and strategy.
pub(super) type Figure2 = BTreeMap<String, BTreeMap<String, Throughput>>;

pub(super) fn figure2(finished: &[FinishedCell]) -> Figure2 {
    let rows: Vec<_> = finished.iter().map(FinishedCell::row).collect();
    let mut figure = Figure2::new();
    let unthrottled: Vec<Group> =
        groups(&rows).into_iter().filter(|group| group.point.per_site_rps.is_unthrottled()).collect();
    for (layout, strategy) in unthrottled
        .iter()
        .flat_map(|group| group.medians.iter().map(|one| (group.layout.clone(), one.strategy.clone())))
    {
        let of = || unthrottled.iter().filter(|group| group.layout == layout).filter_map(|group| group.of(&strategy));
        let growth = median(of().map(|one| one.mb_per_min).collect());
        let makespan = median(of().map(|one| one.makespan_s).collect());
        if let Some((mb_per_min, makespan_s)) = growth.zip(makespan) {
            figure.entry(layout).or_default().insert(strategy, Throughput { mb_per_min, makespan_s });
        }
    }
    figure
}

/// The download rates of single sites in the base cells of a layout.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SingleSites {
    /// Megabytes per minute, by strategy. Each list contains one value for each site of each seed.
    mb_per_min: BTreeMap<String, Vec<f64>>,
    quantiles: BTreeMap<String, BTreeMap<&'static str, f64>>,
    /// Quantiles of the ratio of Top-3's rate to random's rate, over all sites.
    ratio: BTreeMap<&'static str, f64>,
}

/// The download rates of single sites, by layout.
pub(super) type Figure3 = BTreeMap<String, SingleSites>;

/// The download rates of single sites with random and with Top-3. A seed is included if its base
/// cells of both strategies are valid.
pub(super) fn figure3(finished: &[FinishedCell], base: Point) -> Figure3 {
    let at_base = || finished.iter().filter(|one| one.cell.point == base && one.result.void.is_none());
    let mut figure = Figure3::new();
    for random in at_base().filter(|one| one.cell.strategy == "random") {
        let same = |other: &&FinishedCell| {
            other.cell.strategy == "gnp-top3"
                && other.cell.layout == random.cell.layout
                && other.cell.seed == random.cell.seed
        };
        let Some(top3) = at_base().find(same) else { continue };
        let sites = figure.entry(random.cell.layout.clone()).or_insert_with(|| SingleSites {
            mb_per_min: BTreeMap::new(),
            quantiles: BTreeMap::new(),
            ratio: BTreeMap::new(),
        });
        for one in [random, top3] {
            sites.mb_per_min.entry(one.cell.strategy.clone()).or_default().extend(rates(one));
        }
    }
    for sites in figure.values_mut() {
        sites.quantiles =
            sites.mb_per_min.iter().map(|(name, rates)| (name.clone(), quantiles(rates.clone()))).collect();
        if let Some((random, top3)) = sites.mb_per_min.get("random").zip(sites.mb_per_min.get("gnp-top3")) {
            sites.ratio = quantiles(random.iter().zip(top3).map(|(random, top3)| top3 / random).collect());
        }
    }
    figure
}

fn rates(finished: &FinishedCell) -> impl Iterator<Item = f64> {
    let float = |bytes: i64| f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
    finished.result.sites.iter().map(move |(bytes, took_s)| float(*bytes) / 1e6 / (took_s.max(1e-3) / 60.0))
}

fn quantiles(mut values: Vec<f64>) -> BTreeMap<&'static str, f64> {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let count = float(values.len());
        let rank = (0..values.len()).find(|rank| float(rank + 1) >= share * count);
        rank.and_then(|rank| values.get(rank).copied())
    };
    QUANTILES.iter().filter_map(|(name, share)| Some((*name, at(*share)?))).collect()
}

pub(super) fn figure_lines(figure2: &Figure2, figure3: &Figure3) -> String {
    let mut text = String::from("Figure 2: throughput, medians of the unthrottled cells\n");
    // Writing to a string never fails.
    for (layout, strategies) in figure2 {
        let random = strategies.get("random").map(|one| one.mb_per_min);
        for (strategy, Throughput { mb_per_min, makespan_s }) in strategies {
            let ratio = random.map_or(String::new(), |random| format!(", {:.3} of random's", mb_per_min / random));
            let paper = PAPER_GROWTH.iter().find(|(name, _)| name == strategy);
            let paper = paper.map_or(String::new(), |(_, paper)| {
                format!("; the paper's {paper} MB/min, {:.3}", paper / PAPER_GROWTH[0].1)
            });
            let _ = writeln!(
                text,
                "  {layout:<10} {strategy:<16} {mb_per_min:>7.1} MB/min{ratio}, makespan {makespan_s:.1} s{paper}"
            );
        }
    }
    text.push_str("\nFigure 3: single sites at the base cells, MB/min\n");
    for (layout, sites) in figure3 {
        let shown = |quantiles: &BTreeMap<&'static str, f64>| {
            let all = QUANTILES.iter().filter_map(|(name, _)| Some(format!("{name} {:.2}", quantiles.get(name)?)));
            all.collect::<Vec<_>>().join("  ")
        };
        for (strategy, quantiles) in &sites.quantiles {
            let paper = PAPER_SITE.iter().find(|(name, _)| name == strategy);
            let paper = paper.map_or(String::new(), |(_, paper)| format!("   (the paper's one site: {paper})"));
            let _ = writeln!(text, "  {layout:<10} {strategy:<16} {}{paper}", shown(quantiles));
        }
        let paper = PAPER_SITE[1].1 / PAPER_SITE[0].1;
        let _ = writeln!(
            text,
            "  {layout:<10} {:<16} {}   (the paper's one site: {paper:.1})",
            "ratio",
            shown(&sites.ratio)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::experiments::paper::lab_cells::tests::finished;

    #[test]
    fn a_page_has_both_figures_and_all_cells() {
        let finished = [finished("random", 1, 100.0, None), finished("gnp-top3", 1, 150.0, Some("the <lab> was late"))];
        let ratios =
            [SimulationRatios { growth: 1.02, makespan: 0.98 }, SimulationRatios { growth: 1.0, makespan: 1.0 }];
        let base = finished[0].cell.point;
        let tables = Tables { table1: Vec::new(), table2: Vec::new() };
        let (figure2, mut figure3) = (figure2(&finished), figure3(&finished, base));
        let sites = super::SingleSites {
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

    #[test]
    fn figure_2_is_the_median_of_the_unthrottled_cells() {
        let cells = [
            finished("random", 1, 100.0, None),
            finished("random", 2, 140.0, None),
            finished("gnp-top3", 1, 180.0, None),
            finished("gnp-top3", 2, 999.0, Some("busy")),
        ];
        let figure = figure2(&cells);
        assert_eq!(figure["paper"]["random"].mb_per_min, 120.0);
        assert_eq!(figure["paper"]["gnp-top3"].mb_per_min, 180.0);
        let text = figure_lines(&figure, &Figure3::new());
        assert!(text.contains("1.500 of random's") && text.contains("270.5 MB/min, 1.361"), "{text}");
    }

    #[test]
    fn figure_3_compares_sites_only_in_valid_seeds() {
        let cells = [
            finished("random", 1, 100.0, None),
            finished("gnp-top3", 1, 150.0, None),
            finished("random", 2, 100.0, Some("late")),
            finished("gnp-top3", 2, 150.0, None),
        ];
        let base = cells[0].cell.point;
        let figure = figure3(&cells, base);
        let sites = &figure["paper"];
        // The rates of the sites are 1 MB in 60 s and 2 MB in 30 s. The growth of the cell does not
        // affect these rates.
        assert_eq!(sites.mb_per_min["random"], [1.0, 4.0]);
        assert_eq!(sites.ratio["p50"], 1.0);
        assert_eq!(sites.quantiles["gnp-top3"]["p95"], 4.0);
    }
}
