//! The results of all cells: one row per cell, medians over seeds, and ratios to the strategy
//! `random`. This module does no I/O.

use serde::{Deserialize, Serialize};

use super::method::LIST;
use super::settings::{Cell, Point};
use crate::evidence::figures::text_table;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    #[serde(flatten)]
    pub cell: Cell,
    /// Megabytes per minute until the fraction `growth_share` of all bytes has arrived.
    pub mb_per_min: f64,
    pub makespan_s: f64,
    /// The coefficient of variation of the busy times of agents; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_variation: Option<f64>,
    /// Whether the run of the cell is void.
    pub void: bool,
    /// The source of the result; `None` means the lab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

/// The medians of a strategy over all seeds, in one cell.
#[derive(Debug, Clone, PartialEq)]
pub struct StrategyMedians {
    pub strategy: String,
    pub mb_per_min: f64,
    pub makespan_s: f64,
    pub busy_variation: Option<f64>,
}

/// The results of all strategies in one cell of a layout.
#[derive(Debug, Clone, PartialEq)]
pub struct Group {
    pub layout: String,
    pub point: Point,
    pub medians: Vec<StrategyMedians>,
}

impl Group {
    pub fn of(&self, strategy: &str) -> Option<&StrategyMedians> {
        self.medians.iter().find(|one| one.strategy == strategy)
    }

    pub fn growth_ratio(&self, strategy: &str) -> Option<f64> {
        Some(self.of(strategy)?.mb_per_min / self.of("random")?.mb_per_min)
    }

    pub(super) fn is_of(&self, layout: &str, unthrottled: bool) -> bool {
        self.layout == layout && self.point.per_site_rps.is_unthrottled() == unthrottled
    }

    fn makespan_ratio(&self, strategy: &str) -> Option<f64> {
        Some(self.of(strategy)?.makespan_s / self.of("random")?.makespan_s)
    }
}

/// The median; `None` if there are no values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    values.get(values.len() / 2 - 1).map(|lower| f64::midpoint(*lower, upper))
}

/// Groups the rows by layout and point, in the order of their first appearance. Void rows have no
/// effect on the medians.
pub fn groups(rows: &[Row]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        let Cell { layout, point, strategy, .. } = &row.cell;
        let place = groups.iter().position(|group| group.layout == *layout && group.point == *point);
        let place = place.unwrap_or_else(|| {
            groups.push(Group { layout: layout.clone(), point: *point, medians: Vec::new() });
            groups.len() - 1
        });
        if groups[place].of(strategy).is_some() {
            continue;
        }
        let same = |other: &&Row| {
            let Cell { layout: at, point: other_point, strategy: by, .. } = &other.cell;
            at == layout && other_point == point && by == strategy && !other.void
        };
        let of = |figure: fn(&Row) -> f64| median(rows.iter().filter(same).map(figure).collect());
        if let Some((mb_per_min, makespan_s)) = of(|row| row.mb_per_min).zip(of(|row| row.makespan_s)) {
            let busy_variation = median(rows.iter().filter(same).filter_map(|row| row.busy_variation).collect());
            let strategy = strategy.clone();
            groups[place].medians.push(StrategyMedians { strategy, mb_per_min, makespan_s, busy_variation });
        }
    }
    groups
}

/// A table of all cells with the medians of each strategy. The number in brackets is the ratio of a
/// median to `random`'s median.
pub fn table(groups: &[Group], strategies: &[String]) -> String {
    let fixed = ["layout", "loss", "page KB", "requests/s", "Mbit/s"].map(str::to_owned);
    // The list scheduler has a makespan but no growth.
    let growing: Vec<&String> = strategies.iter().filter(|name| *name != LIST).collect();
    let growth = growing.iter().map(|name| format!("{name}, MB/min"));
    let makespan = strategies.iter().map(|name| format!("{name}, makespan s"));
    let header: Vec<String> = fixed.into_iter().chain(growth).chain(makespan).collect();
    let mut rows = Vec::new();
    for group in groups {
        let Point { loss, page_kb, per_site_rps, access_mbit } = group.point;
        let [page_kb, rate, access_mbit] = [page_kb.to_string(), per_site_rps.to_string(), access_mbit.to_string()];
        let mut row = vec![group.layout.clone(), format!("x{loss}"), page_kb, rate, access_mbit];
        let shown = |value: Option<f64>, ratio: Option<f64>| match value.zip(ratio) {
            Some((value, ratio)) => format!("{value:.1} ({ratio:.2})"),
            None => value.map_or("void".to_owned(), |value| format!("{value:.1}")),
        };
        row.extend(
            growing.iter().map(|name| shown(group.of(name).map(|one| one.mb_per_min), group.growth_ratio(name))),
        );
        row.extend(
            strategies.iter().map(|name| shown(group.of(name).map(|one| one.makespan_s), group.makespan_ratio(name))),
        );
        rows.push(row);
    }
    text_table(&header, &rows)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::settings::Settings;
    use super::*;

    pub(in super::super) fn row(strategy: &str, seed: u64, mb_per_min: f64, void: bool) -> Row {
        let point = Settings::committed().unwrap().base;
        let cell = Cell { layout: "paper".to_owned(), point, strategy: strategy.to_owned(), seed };
        Row { cell, mb_per_min, makespan_s: 1000.0 / mb_per_min, busy_variation: None, void, source: None }
    }

    /// One cell with two strategies. The last row of each strategy is void.
    pub(in super::super) fn some_void() -> [Row; 5] {
        [
            row("random", 1, 100.0, false),
            row("random", 2, 200.0, false),
            row("random", 3, 900.0, true),
            row("gnp-top3", 1, 300.0, false),
            row("gnp-top3", 2, 1.0, true),
        ]
    }

    #[test]
    fn void_rows_do_not_count_in_medians() {
        let groups = groups(&some_void());
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].of("random").map(|one| one.mb_per_min), Some(150.0));
        assert_eq!(groups[0].growth_ratio("gnp-top3"), Some(2.0));
        assert_eq!(groups[0].growth_ratio("gnp-top1"), None);
        let printed = table(&groups, &["random", "gnp-top1", "gnp-top3"].map(str::to_owned));
        assert!(printed.contains("300.0 (2.00)") && printed.contains("void"), "{printed}");
    }

    #[test]
    fn a_row_has_the_expected_json() {
        let mut row = row("random", 1, 200.0, false);
        let expected = r#"{"layout":"paper","loss":1.0,"page_kb":20,"per_site_rps":null,"access_mbit":20.0,"strategy":"random","seed":1,"mb_per_min":200.0,"makespan_s":5.0,"void":false}"#;
        assert_eq!(serde_json::to_string(&row).unwrap(), expected);
        row.source = Some("sweep".to_owned());
        let text = serde_json::to_string(&row).unwrap();
        assert!(text.ends_with(r#""void":false,"source":"sweep"}"#), "{text}");
        assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
    }
}
