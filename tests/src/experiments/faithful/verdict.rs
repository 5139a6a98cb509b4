//! Formats all cells as a table, and compares them with the paper's findings. This module does no
//! I/O.

use std::fmt::Write as _;

use landfall_scheduler::model::Strategy;

use super::settings::{Contender, Point, Settings};
use super::{CellResult, Row};
use crate::evidence::float;
use crate::evidence::table::text_table;
use crate::experiments::sweep::grid::median;

/// The growth with `random` in the paper, in megabytes per minute. A cell is similar to the paper
/// if its growth with `random` differs from this growth by at most the fraction `ALIKE`.
const PAPER_RANDOM: f64 = 198.8;
const ALIKE: f64 = 0.25;
/// The ratios of the growth with Top-1 and with Top-3 to the growth with `random`, in the paper.
const PAPER_TOP1: f64 = 1.220;
const PAPER_TOP3: f64 = 1.361;
/// An access link counts as saturated if it is busy for at least this fraction of the time.
const SATURATED: f64 = 0.90;
/// Targets for each strategy with Landfall's map. `OURS` is the ratio of its growth to the growth
/// of the published Top-3, in cells without a saturated link. `NEVER_BELOW` is the ratio of its
/// growth to that of the best published strategy, in every cell.
const OURS: f64 = 1.15;
const NEVER_BELOW: f64 = 0.97;

/// The results of a cell for all seeds.
struct Group<'a> {
    layout: &'a str,
    point: Point,
    rows: Vec<&'a Row>,
}

impl Group<'_> {
    fn median(&self, strategy: &impl ToString, of: impl Fn(&CellResult) -> f64) -> Option<f64> {
        let name = strategy.to_string();
        median(self.rows.iter().filter(|row| row.cell.strategy == name).map(|row| of(&row.result)).collect())
    }

    /// The median over seeds of the growth of `one` divided by the growth of `other` with the same
    /// seed.
    fn ratio(&self, one: &impl ToString, other: &impl ToString) -> Option<f64> {
        let (one, other) = (one.to_string(), other.to_string());
        let growth = |strategy: &str, seed| {
            let same = |row: &&&Row| row.cell.strategy == strategy && row.cell.seed == seed;
            self.rows.iter().find(same).map(|row| row.result.whole)
        };
        let seeds = self.rows.iter().filter(|row| row.cell.strategy == one).map(|row| row.cell.seed);
        median(seeds.filter_map(|seed| Some(growth(&one, seed)? / growth(&other, seed)?)).collect())
    }

    fn has(&self, strategy: &impl ToString) -> bool {
        let name = strategy.to_string();
        self.rows.iter().any(|row| row.cell.strategy == name)
    }

    fn saturated(&self, strategy: &impl ToString) -> bool {
        self.median(strategy, |result| result.busiest_link).is_some_and(|busy| busy >= SATURATED)
    }

    /// Whether the growth with `random` is similar to that in the paper.
    fn is_alike(&self) -> bool {
        let random = self.median(&Strategy::Random, |result| result.whole);
        random.is_some_and(|random| (random / PAPER_RANDOM - 1.0).abs() <= ALIKE)
    }
}

fn groups(rows: &[Row]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for row in rows {
        let (layout, point) = (row.cell.layout.as_str(), row.cell.point);
        match groups.iter_mut().find(|group| group.layout == layout && group.point == point) {
            Some(group) => group.rows.push(row),
            None => groups.push(Group { layout, point, rows: vec![row] }),
        }
    }
    groups
}

/// The table of all cells, and the comparison with the paper.
pub(super) fn text(settings: &Settings, rows: &[Row]) -> String {
    let groups = groups(rows);
    let table = table(settings, &groups);
    let mut text = format!(
        "Growth over {} minutes in MB a minute, medians of seeds; in brackets the ratio to random's. \
         *: about the paper's rate. !: a saturated link.\n{table}",
        settings.window_min
    );
    // Writing to a string never fails.
    for line in lines(settings, &groups) {
        let _ = writeln!(text, "{line}");
    }
    text
}

fn table(settings: &Settings, groups: &[Group<'_>]) -> String {
    let fixed = ["layout", "Mbit/s", "page KB", "server ms", "connection", "random, 0 to half", "half to end"];
    let contenders = settings.contenders().map(|one| one.to_string());
    let header: Vec<String> = fixed.map(str::to_owned).into_iter().chain(contenders).collect();
    let mut rows = Vec::new();
    for group in groups {
        let Point { access_mbit, page_kb, server_ms, connection } = group.point;
        let growth = |of: fn(&CellResult) -> f64| {
            group.median(&Strategy::Random, of).map_or("none".to_owned(), |growth| format!("{growth:.1}"))
        };
        let mut row = vec![
            group.layout.to_owned(),
            access_mbit.to_string(),
            page_kb.to_string(),
            server_ms.to_string(),
            connection.to_string(),
            growth(|result| result.first_half),
            growth(|result| result.second_half),
        ];
        row.extend(settings.contenders().map(|strategy| {
            let Some(growth) = group.median(&strategy, |result| result.whole) else { return "none".to_owned() };
            let full = if group.saturated(&strategy) { "!" } else { "" };
            match group.ratio(&strategy, &Strategy::Random) {
                Some(ratio) if strategy != Contender::Published(Strategy::Random) => {
                    format!("{growth:.1} ({ratio:.2}){full}")
                }
                _ => format!("{growth:.1}{full}{}", if group.is_alike() { " *" } else { "" }),
            }
        }));
        rows.push(row);
    }
    text_table(&header, &rows)
}

fn lines(settings: &Settings, groups: &[Group<'_>]) -> Vec<String> {
    let (random, top1, top3) = (Strategy::Random, Strategy::GNP_TOP1, Strategy::GNP_TOP3);
    let all = groups.len();
    let count = |holds: &dyn Fn(&Group<'_>) -> bool| groups.iter().filter(|group| holds(group)).count();
    let above = |one, other| move |group: &Group<'_>| group.ratio(&one, &other).is_some_and(|ratio| ratio > 1.0);
    let falls_behind = |group: &Group<'_>| group.ratio(&top1, &top3).is_some_and(|ratio| ratio < 1.0);
    let full = |group: &Group<'_>| group.saturated(&top1);
    if !settings.published.iter().all(|strategy| groups.iter().any(|group| group.has(strategy))) {
        return costs(settings, groups);
    }
    let mut lines = vec![
        format!(
            "Top-3 grows faster than random in {} of {all} cells, Top-1 in {}",
            count(&above(top3, random)),
            count(&above(top1, random))
        ),
        format!(
            "Top-1 is slower than Top-3 in {} of the {} cells in which Top-1 saturates a link, and in {} of the {} others",
            count(&|group| full(group) && falls_behind(group)),
            count(&full),
            count(&|group| !full(group) && falls_behind(group)),
            all - count(&full),
        ),
    ];
    let alike: Vec<&Group<'_>> = groups.iter().filter(|group| group.is_alike()).collect();
    for (strategy, paper) in [(top3, PAPER_TOP3), (top1, PAPER_TOP1)] {
        let ratio = median(alike.iter().filter_map(|group| group.ratio(&strategy, &random)).collect());
        lines.push(match ratio {
            Some(ratio) => format!(
                "{strategy} / random, median of the {} cells with random within 25 % of {PAPER_RANDOM}: {ratio:.3}; the paper's {paper}: {}",
                alike.len(),
                said(ratio >= paper)
            ),
            None => format!("{strategy} / random: in no cell is random within 25 % of {PAPER_RANDOM}"),
        });
    }
    lines.extend(costs(settings, groups));
    lines.extend(ours(settings, groups));
    lines
}

/// The mean round trip weighted by bytes, and the fraction of bytes between carriers, for each
/// strategy.
fn costs(settings: &Settings, groups: &[Group<'_>]) -> Vec<String> {
    let of = |strategy: Contender| {
        let mean = |of: fn(&CellResult) -> f64| {
            let all: Vec<f64> = groups.iter().filter_map(|group| group.median(&strategy, of)).collect();
            all.iter().sum::<f64>() / float(all.len().max(1))
        };
        format!(
            "{strategy}: a byte's path has {:.1} ms, {:.1} % of bytes pass between carriers (means of all cells)",
            mean(|result| result.byte_rtt_ms),
            100.0 * mean(|result| result.between_carriers)
        )
    };
    let ran = |strategy: &Contender| groups.iter().any(|group| group.has(strategy));
    settings.contenders().filter(ran).map(of).collect()
}

/// Compares the strategies that use Landfall's map with the published strategies.
fn ours(settings: &Settings, groups: &[Group<'_>]) -> Vec<String> {
    let top3 = Strategy::GNP_TOP3;
    let free = || groups.iter().filter(|group| !settings.published.iter().any(|one| group.saturated(one)));
    let growth = |group: &Group<'_>, strategy| group.median(&strategy, |result| result.whole);
    let line = |strategy: Strategy| {
        let ratio = median(free().filter_map(|group| group.ratio(&strategy, &top3)).collect());
        // `None` unless all published strategies ran.
        let best = |group: &Group<'_>| {
            let growths: Option<Vec<f64>> = settings.published.iter().map(|one| growth(group, *one)).collect();
            growths.map(|growths| growths.into_iter().fold(0.0, f64::max))
        };
        let least = groups
            .iter()
            .filter_map(|group| Some(growth(group, strategy)? / best(group)?))
            .fold(f64::INFINITY, f64::min);
        let ratio_said = ratio.map_or("none".to_owned(), |ratio| format!("{ratio:.3}"));
        format!(
            "{strategy} / published Top-3, median of the {} cells without a saturated link: {ratio_said}, target {OURS}: {}; \
             least ratio to the best published strategy in a cell: {least:.3}, target {NEVER_BELOW}: {}",
            free().count(),
            said(ratio.is_some_and(|ratio| ratio >= OURS)),
            said(least.is_finite() && least >= NEVER_BELOW)
        )
    };
    let ran = |strategy: &&Strategy| groups.iter().any(|group| group.has(strategy));
    settings.ours.iter().filter(ran).map(|strategy| line(*strategy)).collect()
}

fn said(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

#[cfg(test)]
mod tests {
    use super::super::settings::Cell;
    use super::*;

    fn row(strategy: Strategy, seed: u64, whole: f64, busiest_link: f64) -> Row {
        let point = Settings::committed().unwrap().centre;
        let (first_half, second_half) = (whole, whole);
        let result = CellResult {
            first_half,
            second_half,
            whole,
            busiest_link,
            byte_rtt_ms: 50.0,
            between_carriers: 0.25,
            preempted: 0,
        };
        Row { cell: Cell { layout: "spread".to_owned(), point, strategy: strategy.to_string(), seed }, result }
    }

    #[test]
    fn ratios_are_of_one_seed_and_a_saturated_link_is_marked() {
        let settings = Settings::committed().unwrap();
        let rows = [
            row(Strategy::Random, 1, 200.0, 0.5),
            row(Strategy::Random, 2, 100.0, 0.5),
            row(Strategy::Random, 3, 210.0, 0.5),
            row(Strategy::GNP_TOP1, 1, 220.0, 0.95),
            row(Strategy::GNP_TOP1, 2, 300.0, 0.95),
            row(Strategy::GNP_TOP3, 1, 300.0, 0.5),
            row(Strategy::GNP_TOP3, 2, 136.1, 0.5),
            row(Strategy::GnpBalanced, 1, 360.0, 0.5),
        ];
        let text = text(&settings, &rows);
        assert!(text.contains("200.0 *") && text.contains("260.0 (2.05)!"), "{text}");
        assert!(text.contains("Top-3 grows faster than random in 1 of 1 cells, Top-1 in 1"), "{text}");
        // Top-1's growth divided by Top-3's is 0.73 with the first seed and 2.20 with the second.
        // The median of these ratios is above 1.
        assert!(text.contains("slower than Top-3 in 0 of the 1 cells in which Top-1 saturates"), "{text}");
        assert!(text.contains("gnp-top3 / random, median of the 1 cells with random within 25 % of 198.8: 1.430; the paper's 1.361: met"), "{text}");
        assert!(text.contains("random: a byte's path has 50.0 ms, 25.0 % of bytes pass between carriers"), "{text}");
        assert!(text.contains("gnp-balanced / published Top-3, median of the 0 cells without a saturated link: none, target 1.15: MISSED"), "{text}");
    }
}
