//! Places one host against agents whose coordinates stand still (the paper 2.1, step c; Ng and Zhang, ordinary host
//! operations).
//!
//! Nine landmarks barely determine eight dimensions and a height, so the error alone would let a host drift to where no
//! agent lies. Two things hold it: it starts from the agents whose own position explains the measurements best, and a
//! weak prior says that hosts lie where agents do.

use crate::model::{AgentId, Rtt};

use super::objective::{Anchor, distance, finite, host_cost, rms_relative_error};
use super::simplex::{Minimum, SimplexError, Stop, minimise};
use super::{Embedding, Placement, millis};

/// Agents whose position is tried as a start.
const STARTS: usize = 3;
/// The first simplex's step, as a part of the embedding's scale.
const STEP: f64 = 0.1;
/// When a host's simplex ends.
const STOP: Stop = Stop { steps: 400, tolerance: 1e-4 };
/// Weight of the prior in units of a squared log error.
const PRIOR: f64 = 0.005;
/// Distance to the nearest agent beyond which the prior begins to pull, as a part of the scale.
const PRIOR_REACH: f64 = 0.1;

/// Why a host could not be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LocateError {
    /// No measurement came from an agent that this embedding places.
    #[error("none of the {measured} measurements is from an agent placed in the embedding")]
    NothingMeasured {
        /// Measurements given.
        measured: usize,
    },
    /// The solver failed.
    #[error("place the host")]
    Solver(#[source] SimplexError),
}

impl Embedding {
    /// Places a host by what landmarks, and any other placed agents, measured to it. Fewer measurements than dimensions
    /// will do: the prior settles what they leave open.
    ///
    /// # Errors
    /// When none of the measurements is from an agent of this embedding.
    pub fn locate(&self, measured: &[(AgentId, Rtt)]) -> Result<Placement, LocateError> {
        let mut known: Vec<(AgentId, Rtt)> =
            measured.iter().copied().filter(|(agent, _)| self.agents.contains_key(agent)).collect();
        // Sorted, so that the sums, and with them the last bit of the result, do not depend on the order given.
        known.sort_unstable();
        let anchors: Vec<Anchor<'_>> = known
            .iter()
            .filter_map(|&(agent, rtt)| {
                Some(Anchor { coordinate: &self.placement(agent)?.coordinate, measured: millis(rtt) })
            })
            .collect();
        if anchors.is_empty() {
            return Err(LocateError::NothingMeasured { measured: measured.len() });
        }
        let agents: Vec<&[f64]> = self.agents.values().map(|placement| placement.coordinate.as_slice()).collect();
        let best = place(&anchors, &agents, self.scale).map_err(LocateError::Solver)?;
        let mut coordinate = best.point;
        if let Some(height) = coordinate.last_mut() {
            *height = height.abs();
        }
        let fit_error = rms_relative_error(&coordinate, &anchors);
        Ok(Placement { epoch: self.epoch, coordinate, fit_error })
    }
}

/// The best place for a host with these anchors, among agents that are the prior. `scale` is in milliseconds.
fn place(anchors: &[Anchor<'_>], agents: &[&[f64]], scale: f64) -> Result<Minimum, SimplexError> {
    let softening = super::softening(scale);
    let cost = |host: &[f64]| finite(host_cost(host, anchors, softening) + prior(host, agents, scale));
    let mut starts: Vec<Minimum> = agents
        .iter()
        .map(|agent| {
            let point = beside(agent, anchors);
            let cost = cost(&point);
            Minimum { point, cost }
        })
        .collect();
    starts.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    starts.truncate(STARTS);
    let mut best: Option<Minimum> = None;
    for start in starts {
        let found = minimise(cost, &start.point, STEP * scale, STOP)?;
        if best.as_ref().is_none_or(|best| found.cost < best.cost) {
            best = Some(found);
        }
    }
    Ok(best.expect("a host with an anchor has an agent to start from"))
}

/// At an agent's position, with the height that the measurements leave over.
fn beside(agent: &[f64], anchors: &[Anchor<'_>]) -> Vec<f64> {
    let mut point = agent.to_vec();
    let Some(height) = point.last_mut() else { return point };
    *height = 0.0;
    let mut left: Vec<f64> = anchors.iter().map(|a| a.measured - distance(&point, a.coordinate)).collect();
    left.sort_by(f64::total_cmp);
    if let (Some(height), Some(median)) = (point.last_mut(), left.get(left.len() / 2)) {
        *height = median.max(0.0);
    }
    point
}

/// The prior: the log of how far the nearest agent's position is, in reaches.
fn prior(host: &[f64], agents: &[&[f64]], scale: f64) -> f64 {
    let dimensions = host.len().saturating_sub(1);
    let square = |agent: &&[f64]| host.iter().zip(*agent).take(dimensions).map(|(p, q)| (p - q) * (p - q)).sum::<f64>();
    let nearest = agents.iter().map(square).fold(f64::INFINITY, f64::min);
    let reach = PRIOR_REACH * scale;
    PRIOR * (nearest / (reach * reach)).ln_1p()
}
