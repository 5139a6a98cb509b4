//! Compares an agent's measurements of other agents with their measurements of it.

use crate::model::AgentId;

use super::bias_and_spread::{FEWEST, ReportBias};
use super::evidence::{RemainingEvidence, log_ratio};

/// The error of an agent's measurements; `None` if too few pairs are measured in both directions.
pub(super) fn asymmetry(remaining: &RemainingEvidence<'_>, agent: AgentId) -> Option<ReportBias> {
    let mesh = remaining.evidence.mesh;
    let pairs = remaining
        .others(agent)
        .filter_map(|other| Some(log_ratio(mesh.measured(agent, other)?, mesh.measured(other, agent)?)));
    ReportBias::of(&pairs.collect::<Vec<f64>>(), FEWEST)
}
