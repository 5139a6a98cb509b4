//! Compares an agent's measurements of other agents with the map, on which the agent is located by
//! the other agents' measurements alone.

use crate::gnp::Embedding;
use crate::model::{AgentId, Rtt};

use super::bias_and_spread::{FEWEST, ReportBias};
use super::evidence::{RemainingEvidence, log_ratio};

/// The error of an agent's measurements; `None` if there are too few measurements.
pub(super) fn residual(remaining: &RemainingEvidence<'_>, map: &Embedding, agent: AgentId) -> Option<ReportBias> {
    let mesh = remaining.evidence.mesh;
    let of_it: Vec<(AgentId, Rtt)> =
        remaining.others(agent).filter_map(|other| Some((other, mesh.measured(other, agent)?))).collect();
    if of_it.len() < FEWEST {
        return None;
    }
    let place = map.locate(&of_it).ok()?;
    let rows = remaining.others(agent).filter_map(|other| {
        let predicted = map.predict(&place, map.placement(other)?).ok()?;
        Some(log_ratio(mesh.measured(agent, other)?, predicted))
    });
    ReportBias::of(&rows.collect::<Vec<f64>>(), FEWEST)
}
