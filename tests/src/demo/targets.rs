//! The targets of the demo: limits on round trips, on the errors of predictions and measurements,
//! and on memory.

use crate::cluster::Cluster;
use crate::evidence::figures::{Accuracy, Figures, RIGHT_PAIRS};
use crate::machine;

const MAX_RELATIVE_ERROR: f64 = 0.15;
/// Maximum of [`Figures::ratio`] with a measured matrix of round trips.
const MAX_RATIO_MATRIX: f64 = 0.40;
/// Maximum of [`Figures::ratio`] with the paper's layout.
const MAX_RATIO_LAYOUT: f64 = 0.60;
const MEGABYTE: f64 = 1e6;
const MAX_SCHEDULER_MB: f64 = 150.0;
const MAX_AGENT_MB: f64 = 40.0;

#[derive(Debug, Clone)]
pub struct Target {
    pub name: String,
    pub wanted: String,
    pub measured: String,
    pub met: bool,
}

/// Peak memory in megabytes; `None` if the system does not report it.
pub(super) struct PeakMemory {
    pub(super) scheduler: Option<f64>,
    pub(super) postgres: Option<f64>,
    pub(super) largest_agent: Option<f64>,
}

impl PeakMemory {
    pub(super) fn of(cluster: &Cluster) -> Self {
        let (scheduler, agents) = cluster.pids();
        let megabytes = |bytes: u64| f64::from(u32::try_from(bytes >> 10).unwrap_or(u32::MAX)) * 1024.0 / MEGABYTE;
        Self {
            scheduler: scheduler.and_then(machine::peak_memory).map(megabytes),
            postgres: machine::postgres_memory(&cluster.postgres_cluster()).map(megabytes),
            largest_agent: agents.into_iter().filter_map(machine::peak_memory).max().map(megabytes),
        }
    }
}

pub(super) fn shown_mb(value: Option<f64>) -> String {
    value.map_or("unknown".to_owned(), |value| format!("{value:.0} MB"))
}

pub(super) fn targets(has_matrix: bool, figures: &Figures, memory: &PeakMemory) -> Vec<Target> {
    let max_ratio = if has_matrix { MAX_RATIO_MATRIX } else { MAX_RATIO_LAYOUT };
    let mut targets = accuracy_targets(figures, max_ratio);
    targets.push(Target {
        name: "peak memory of the scheduler".to_owned(),
        wanted: format!("< {MAX_SCHEDULER_MB:.0} MB"),
        measured: format!("{} (its Postgres: {})", shown_mb(memory.scheduler), shown_mb(memory.postgres)),
        met: memory.scheduler.is_some_and(|value| value < MAX_SCHEDULER_MB),
    });
    targets.push(Target {
        name: "peak memory of the largest agent".to_owned(),
        wanted: format!("< {MAX_AGENT_MB:.0} MB"),
        measured: shown_mb(memory.largest_agent),
        met: memory.largest_agent.is_some_and(|value| value < MAX_AGENT_MB),
    });
    targets
}

pub(super) fn accuracy_targets(figures: &Figures, max_ratio: f64) -> Vec<Target> {
    let share = |name: &str, accuracy: &Accuracy| Target {
        name: format!("{name} within max(5 %, 2 ms) of the emulated round trip"),
        wanted: format!(">= {:.0} % of pairs", RIGHT_PAIRS * 100.0),
        measured: accuracy.share().map_or("none".to_owned(), |share| {
            let all = accuracy.pairs + accuracy.unanswered;
            format!("{:.1} % of {all}, less {:.1} ms of processing", share * 100.0, accuracy.processing_ms)
        }),
        met: accuracy.is_true(),
    };
    vec![
        Target {
            name: "mean round trip to the chosen agent, relative to a random one".to_owned(),
            wanted: format!("<= {max_ratio:.2}"),
            measured: match (figures.ratio(), figures.crawler_ms) {
                (Some(ratio), Some(crawler)) => {
                    format!(
                        "{ratio:.3} ({crawler:.1} / {:.1} ms; nearest {:.1})",
                        figures.random_ms, figures.nearest_ms
                    )
                }
                _ => "nothing crawled".to_owned(),
            },
            met: figures.ratio().is_some_and(|ratio| ratio <= max_ratio),
        },
        Target {
            name: "predicted distance, median relative error".to_owned(),
            wanted: format!("< {MAX_RELATIVE_ERROR:.2}"),
            measured: match (figures.relative_error(0.5), figures.relative_error(0.9)) {
                (Some(median), Some(ninety)) => {
                    format!("{median:.3} (90 %: {ninety:.3}; {} pairs)", figures.predictions.len())
                }
                _ => "no predictions".to_owned(),
            },
            met: figures.relative_error(0.5).is_some_and(|error| error < MAX_RELATIVE_ERROR),
        },
        share("mesh measurements", &figures.mesh),
        share("site measurements", &figures.sites),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::figures::tests::figures;

    #[test]
    fn a_target_is_met_up_to_its_limit() {
        let targets = accuracy_targets(&figures(), MAX_RATIO_MATRIX);
        let met: Vec<bool> = targets.iter().map(|target| target.met).collect();
        assert_eq!(met, [true, true, false, false], "{targets:?}");
    }
}
