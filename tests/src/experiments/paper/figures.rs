//! Figures 2 and 3: the throughput of each strategy over time, and the download rates of single
//! sites. This module does no I/O.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::lab_cells::FinishedCell;
use crate::evidence::figures::float;
use crate::experiments::sweep::grid::{Group, groups, median};
use crate::experiments::sweep::settings::Point;

/// The values of the paper's Figure 2, in megabytes per minute.
pub(super) const PAPER_GROWTH: [(&str, f64); 3] = [("random", 198.8), ("gnp-top1", 242.6), ("gnp-top3", 270.5)];
/// The values of the paper's Figure 3, for one site that was drawn at random, in megabytes per
/// minute.
pub(super) const PAPER_SITE: [(&str, f64); 2] = [("random", 0.45), ("gnp-top3", 2.38)];
const QUANTILES: [(&str, f64); 5] = [("p5", 0.05), ("p25", 0.25), ("p50", 0.5), ("p75", 0.75), ("p95", 0.95)];

/// The medians of a strategy over a layout's cells that do not limit the requests per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Throughput {
    pub(super) mb_per_min: f64,
    pub(super) makespan_s: f64,
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
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct SingleSites {
    /// Megabytes per minute, by strategy. Each list contains one value for each site of each seed.
    pub(super) mb_per_min: BTreeMap<String, Vec<f64>>,
    pub(super) quantiles: BTreeMap<String, BTreeMap<&'static str, f64>>,
    /// Quantiles of the ratio of Top-3's rate to random's rate, over all sites.
    pub(super) ratio: BTreeMap<&'static str, f64>,
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

pub(super) fn lines(figure2: &Figure2, figure3: &Figure3) -> String {
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
    use super::super::lab_cells::tests::finished;
    use super::*;

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
        let text = lines(&figure, &Figure3::new());
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
