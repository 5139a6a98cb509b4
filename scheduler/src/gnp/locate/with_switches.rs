//! Places one host by its distances to fixed hosts, with any switches of the plain map. A
//! [`Solver`](super::solver::Solver) is many times faster than this module, but supports only the
//! default switches.

use super::host_cost::{PRIOR, PRIOR_REACH};
use super::simplex::{SimplexError, StopRule, minimise};
use super::starts::nearest_anchors;
use crate::gnp::objective::{Anchor, Loss, rms_relative_error, softening};
use crate::gnp::{Embedding, PlainSwitches};

/// The step length of the first simplex, as a share of the map's scale (the median distance).
const STEP: f64 = 0.1;
/// The stopping rule allows many steps, because Ng and Zhang's cost is flat near its minimum.
const STOP: StopRule = StopRule { steps: 1_000, tolerance: 1e-5 };

#[derive(Debug, Clone, Copy)]
pub(in crate::gnp) struct Descent {
    pub(in crate::gnp) loss: Loss,
    /// Whether hosts have a height. If false, all heights are zero.
    pub(in crate::gnp) height: bool,
    /// The map's scale, in milliseconds.
    pub(in crate::gnp) scale: f64,
}

impl Descent {
    pub(in crate::gnp) fn of(switches: PlainSwitches, scale: f64) -> Self {
        let PlainSwitches { log, robust, height, .. } = switches;
        Self { loss: Loss { log, robust }, height, scale }
    }

    /// Minimises `cost` by the simplex, from `start`; `step` is a share of the scale.
    pub(in crate::gnp) fn minimise(
        self,
        cost: impl Fn(&[f64]) -> f64,
        start: &[f64],
        step: f64,
        stop: StopRule,
    ) -> Result<Vec<f64>, SimplexError> {
        let step = step * self.scale;
        if self.height {
            return Ok(minimise(cost, start, step, stop)?.point);
        }
        let level = |place: &[f64]| [place, &[0.0]].concat();
        let dimensions = start.len().saturating_sub(1);
        let found = minimise(|place| cost(&level(place)), &start[..dimensions], step, stop)?;
        Ok(level(&found.point))
    }
}

/// Returns the coordinate of the host whose measured distances are in `anchors`. The prior keeps
/// the host near the coordinates in `agents`. If `agents` is `None`, there is no prior.
pub(in crate::gnp) fn place(
    anchors: &[Anchor<'_>],
    agents: Option<&[&[f64]]>,
    descent: Descent,
) -> Result<Vec<f64>, SimplexError> {
    let softening = softening(descent.scale);
    let cost = |host: &[f64]| {
        descent.loss.of(host, anchors, softening) + agents.map_or(0.0, |agents| prior(host, agents, descent.scale))
    };
    let mut best: Option<(f64, Vec<f64>)> = None;
    for start in nearest_anchors(anchors) {
        let mut found = descent.minimise(cost, start, STEP, STOP)?;
        if let Some(height) = found.last_mut() {
            *height = height.abs();
        }
        let lower = cost(&found);
        if best.as_ref().is_none_or(|(least, _)| lower < *least) {
            best = Some((lower, found));
        }
    }
    Ok(best.map(|(_, point)| point).unwrap_or_default())
}

/// Returns the coordinate and the fit error of a host, with any switches. `measured` contains
/// pairs of an agent's index and a round trip in milliseconds.
pub(super) fn place_host(embedding: &Embedding, measured: &[(usize, f64)]) -> Result<(Vec<f64>, f64), SimplexError> {
    let agents: Vec<&[f64]> = embedding.agents().values().map(|placement| placement.coordinate.as_slice()).collect();
    let anchors: Vec<Anchor<'_>> =
        measured.iter().map(|&(agent, measured)| Anchor { coordinate: agents[agent], measured }).collect();
    let near = embedding.switches().prior.then_some(agents.as_slice());
    let coordinate = place(&anchors, near, Descent::of(embedding.switches(), embedding.scale()))?;
    let fit_error = rms_relative_error(&coordinate, &anchors);
    Ok((coordinate, fit_error))
}

fn prior(host: &[f64], agents: &[&[f64]], scale: f64) -> f64 {
    let dimensions = host.len().saturating_sub(1);
    let square = |agent: &&[f64]| -> f64 { host[..dimensions].iter().zip(*agent).map(|(a, b)| (a - b).powi(2)).sum() };
    let nearest = agents.iter().map(square).fold(f64::INFINITY, f64::min);
    let reach = PRIOR_REACH * scale;
    PRIOR * (nearest / (reach * reach)).ln_1p()
}
