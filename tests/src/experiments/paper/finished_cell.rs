//! A finished cell of the lab, and its row in the table of all results.

use super::lab_cells::LabResult;
use crate::experiments::sweep::grid::Row;
use crate::experiments::sweep::settings::Cell;

/// A cell of the lab, and its result.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct FinishedCell {
    pub(super) cell: Cell,
    pub(super) result: LabResult,
}

impl FinishedCell {
    pub(super) fn row(&self) -> Row {
        Row {
            cell: self.cell.clone(),
            mb_per_min: self.result.growth.mb_per_min,
            makespan_s: self.result.makespan_s,
            busy_variation: None,
            void: self.result.void.is_some(),
            source: None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::lab_cells::MachineFigures;
    use super::*;
    use crate::experiments::sweep::growth::Growth;
    use crate::experiments::sweep::layout_measurements::LayoutMeasurements;
    use crate::experiments::sweep::settings::Settings;

    /// A finished cell of the paper's layout at the base settings, with the results of two sites.
    pub(in super::super) fn finished(strategy: &str, seed: u64, mb_per_min: f64, void: Option<&str>) -> FinishedCell {
        let point = Settings::committed().unwrap().base;
        let machine = MachineFigures {
            requests_per_s: 1.0,
            idle: 1.0,
            late_ms: 0.1,
            lease_ms: 1.0,
            outcome_ms: 1.0,
            request_ms: 1.0,
            begin_ms: 1.0,
        };
        FinishedCell {
            cell: Cell { layout: "paper".to_owned(), point, strategy: strategy.to_owned(), seed },
            result: LabResult {
                makespan_s: 6000.0 / mb_per_min,
                growth: Growth { mb_per_min, curve: vec![(1.0, 0.5), (60.0, 3.0)] },
                sites: vec![(1_000_000, 60.0), (2_000_000, 30.0)],
                per_agent: vec![1, 1],
                void: void.map(str::to_owned),
                machine,
                measurements: LayoutMeasurements {
                    agents: vec![],
                    landmarks: vec![],
                    epoch: Some(1),
                    mesh: vec![],
                    sites: vec![],
                },
                first_task: 1,
            },
        }
    }
}
