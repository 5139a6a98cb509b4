//! The targets of `lab sweep` and `lab paper`, and sentences that compare the results of all cells
//! with them. This module does no I/O.

use super::results::{AGAIN, Group, LIST, StrategyMedians, median};
use super::settings::Point;

/// Minimum throughput of `earliest-finish` in every cell of `lab sweep`, as a fraction of the
/// throughput of the best other strategy.
pub const LEAST_SHARE_SIMULATED: f64 = 0.97;
/// Minimum throughput of `earliest-finish` in every cell of `lab paper`, as a fraction of the
/// throughput of the best other strategy.
pub const LEAST_SHARE_IN_LAB: f64 = 0.90;
/// Targets for the ratio of the throughput of a strategy to that of `random`, in cells that do not
/// limit the requests per second. The targets are the values in the paper.
const TARGETS: [(&str, f64); 2] = [("gnp-top1", 1.220), ("gnp-top3", 1.361)];
/// The strategy that is tested.
const OURS: &str = "earliest-finish";
/// Targets of the tested strategy. `GROWTH` is the minimum ratio of its growth to Top-3's growth.
/// `AGAIN_MAKESPAN` is the maximum ratio of the makespan of its second crawl of the sites, when the
/// sizes are known, to Top-3's makespan. `LIST_MAKESPAN` is the maximum ratio of the same makespan
/// to the list scheduler's makespan.
const GROWTH: f64 = 1.15;
const AGAIN_MAKESPAN: f64 = 0.80;
const LIST_MAKESPAN: f64 = 1.15;
/// Maximum coefficient of variation of the busy times of agents.
const VARIATION: f64 = 0.25;
const BALANCED: &str = "gnp-balanced";
const OTHERS: [&str; 3] = ["random", "gnp-top1", "gnp-top3"];

/// Sentences that compare the results with the targets. `least` is the minimum throughput of the
/// tested strategy, as a fraction of the throughput of the best other strategy.
pub fn verdict(groups: &[Group], least: f64) -> Vec<String> {
    let mut lines = Vec::new();
    for layout in layouts(groups) {
        let unthrottled: Vec<&Group> = groups.iter().filter(|group| group.is_of(layout, true)).collect();
        for (strategy, target) in TARGETS {
            let ratios: Vec<f64> = unthrottled.iter().filter_map(|group| group.growth_ratio(strategy)).collect();
            let (count, middle) = (ratios.len(), median(ratios));
            let Some(middle) = middle else { continue };
            let verdict = met_or_missed(middle >= target);
            lines.push(format!(
                "{layout}: {strategy} / random, median of {count} unthrottled cells: {middle:.3}; target >= {target:.3}: {verdict}"
            ));
        }
    }
    lines.extend(ours(groups));
    lines.extend(evenness(groups));
    let shares: Vec<(f64, &Group)> = groups.iter().filter_map(|group| Some((share(group)?, group))).collect();
    if let Some((worst, group)) = shares.iter().min_by(|one, other| one.0.total_cmp(&other.0)) {
        let Point { loss, page_kb, per_site_rps, access_mbit } = group.point;
        lines.push(format!(
            "{OURS} / the best of {}: least in {} cells {worst:.3} ({} loss x{loss}, {page_kb} KB, {per_site_rps} requests/s, \
             {access_mbit} Mbit/s); target >= {least:.2}: {}",
            OTHERS.join(", "),
            shares.len(),
            group.layout,
            met_or_missed(*worst >= least)
        ));
    }
    lines
}

/// A comparison: the name of the figure, the tested strategy, the other strategy, the function that
/// computes the figure, and the target.
type Comparison = (&'static str, &'static str, &'static str, fn(&StrategyMedians) -> f64, f64);

/// Sentences that compare the tested strategy with Top-3 and the list scheduler, by layout and
/// request rate. Each sentence states the median ratio over the cells, and the ratio in the worst
/// cell.
fn ours(groups: &[Group]) -> Vec<String> {
    let growth = |one: &StrategyMedians| one.mb_per_min;
    let makespan = |one: &StrategyMedians| one.makespan_s;
    let figures: [Comparison; 4] = [
        ("growth", OURS, "gnp-top3", growth, GROWTH),
        ("makespan", OURS, "gnp-top3", makespan, 1.0),
        ("makespan", AGAIN, "gnp-top3", makespan, AGAIN_MAKESPAN),
        ("makespan", AGAIN, LIST, makespan, LIST_MAKESPAN),
    ];
    let mut lines = Vec::new();
    for (pace, unthrottled) in [("unthrottled", true), ("throttled", false)] {
        for (what, ours, other, figure, target) in figures {
            // If the request rate is limited, this limit determines the growth, so all strategies
            // have the same growth.
            if what == "growth" && !unthrottled {
                continue;
            }
            for layout in layouts(groups) {
                let here = groups.iter().filter(|group| group.is_of(layout, unthrottled));
                let ratio = |group: &Group| Some(figure(group.of(ours)?) / figure(group.of(other)?));
                let ratios: Vec<f64> = here.filter_map(ratio).collect();
                let worst = if what == "growth" { f64::min } else { f64::max };
                let Some((worst, middle)) = ratios.iter().copied().reduce(worst).zip(median(ratios.clone())) else {
                    continue;
                };
                let (sign, met) = if what == "growth" { (">=", middle >= target) } else { ("<=", middle <= target) };
                lines.push(format!(
                    "{layout}, {pace}: {what}, {ours} / {other}, median of {} cells: {middle:.3}, worst {worst:.3}; target {sign} {target:.2}: {}",
                    ratios.len(),
                    met_or_missed(met)
                ));
            }
        }
    }
    lines
}

/// Sentences that state the coefficient of variation of the busy times of agents. There is one
/// sentence per layout and request rate, with the medians over the cells.
fn evenness(groups: &[Group]) -> Vec<String> {
    let mut lines = Vec::new();
    for (pace, unthrottled) in [("unthrottled", true), ("throttled", false)] {
        for layout in layouts(groups) {
            let here: Vec<&Group> = groups.iter().filter(|group| group.is_of(layout, unthrottled)).collect();
            let of =
                |strategy: &str| median(here.iter().filter_map(|group| group.of(strategy)?.busy_variation).collect());
            let others = OTHERS.iter().chain(&[BALANCED, AGAIN, LIST]);
            let others: Vec<String> = others.filter_map(|name| Some(format!("{name} {:.2}", of(name)?))).collect();
            let Some(ours) = of(OURS) else { continue };
            lines.push(format!(
                "{layout}, {pace}: busy times' coefficient of variation, {OURS}: {ours:.2}; target <= {VARIATION:.2}: {}; {}",
                met_or_missed(ours <= VARIATION),
                others.join(", ")
            ));
        }
    }
    lines
}

/// The throughput of the tested strategy, as a fraction of the throughput of the best other
/// strategy.
fn share(group: &Group) -> Option<f64> {
    let best = OTHERS.iter().filter_map(|name| group.of(name)).map(|one| one.mb_per_min).max_by(f64::total_cmp)?;
    Some(group.of(OURS)?.mb_per_min / best)
}

/// The layouts, in the order of their first appearance.
fn layouts(groups: &[Group]) -> Vec<&str> {
    let mut layouts: Vec<&str> = groups.iter().map(|group| group.layout.as_str()).collect();
    layouts.dedup();
    layouts
}

fn met_or_missed(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::sweep::results::tests::{row, some_void};
    use crate::experiments::sweep::results::{Row, groups};

    #[test]
    fn the_medians_of_valid_rows_are_compared_with_the_papers_ratios() {
        let verdict = verdict(&groups(&some_void()), 0.9);
        assert_eq!(verdict, ["paper: gnp-top3 / random, median of 1 unthrottled cells: 2.000; target >= 1.361: met"]);
    }

    #[test]
    fn our_strategy_is_compared_with_the_best_other_one_in_each_cell() {
        let rows =
            [row("random", 1, 100.0, false), row("gnp-top3", 1, 80.0, false), row("earliest-finish", 1, 89.0, false)];
        let lines = verdict(&groups(&rows), 0.9);
        let last = lines.last().unwrap();
        assert!(last.contains("least in 1 cells 0.890") && last.ends_with("MISSED"), "{lines:?}");
    }

    #[test]
    fn our_strategy_is_compared_with_top_3_and_the_list_scheduler() {
        let rows = [
            row("gnp-top3", 1, 100.0, false),
            row("earliest-finish", 1, 120.0, false),
            row(AGAIN, 1, 125.0, false),
            row(LIST, 1, 150.0, false),
        ];
        let lines = verdict(&groups(&rows), 0.9);
        let expected = [
            "growth, earliest-finish / gnp-top3, median of 1 cells: 1.200, worst 1.200; target >= 1.15: met",
            "makespan, earliest-finish / gnp-top3, median of 1 cells: 0.833, worst 0.833; target <= 1.00: met",
            "makespan, earliest-finish, again / gnp-top3, median of 1 cells: 0.800, worst 0.800; target <= 0.80: met",
            "makespan, earliest-finish, again / list, all known, median of 1 cells: 1.200, worst 1.200; target <= 1.15: MISSED",
        ];
        for expected in expected {
            assert!(lines.contains(&format!("paper, unthrottled: {expected}")), "{expected}: {lines:#?}");
        }
    }

    #[test]
    fn the_variation_of_busy_times_is_listed_for_every_strategy() {
        let busy = |strategy: &str, seed: u64, variation: f64| Row {
            busy_variation: Some(variation),
            ..row(strategy, seed, 100.0, false)
        };
        let rows = [
            busy(OURS, 1, 0.10),
            busy(OURS, 2, 0.20),
            busy(OURS, 3, 0.90),
            busy("random", 1, 0.26),
            row("gnp-top1", 1, 100.0, false),
            busy(LIST, 1, 0.05),
        ];
        let lines = verdict(&groups(&rows), 0.9);
        let expected = "paper, unthrottled: busy times' coefficient of variation, earliest-finish: 0.20; target <= 0.25: met; \
                    random 0.26, list, all known 0.05";
        assert!(lines.iter().any(|line| line == expected), "{lines:#?}");
        let missed = verdict(&groups(&[busy(OURS, 1, 0.26)]), 0.9);
        assert!(missed.iter().any(|line| line.contains("<= 0.25: MISSED")), "{missed:#?}");
        assert!(
            !lines.iter().any(|line| line.contains("throttled: busy") && !line.contains("unthrottled")),
            "{lines:#?}"
        );
    }
}
