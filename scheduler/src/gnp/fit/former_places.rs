//! Keeps agents near their former places, unless another arrangement is clearly better.
//!
//! A refit also starts from every agent's place in the previous embedding, and keeps the result of
//! this start unless another start reaches a clearly lower cost. The cost has several minima of
//! almost the same value, so without this preference a refit could switch to another minimum, and
//! move agents whose distances did not change.

use crate::gnp::Embedding;
use crate::gnp::embedding::align;
use crate::gnp::locate::simplex::SimplexError;
use crate::gnp::locate::with_switches::Descent;

use super::measured::Measured;
use super::sweeps::{LAST_ROUND, converge};

/// A refit keeps the result of the start from the previous embedding unless the cost of another
/// start is lower by more than this share. If an unchanged network is measured again, the median
/// agent moves by 1.7 ms with a start from the previous embedding, and by 6 ms without one
/// (docs/evaluation/accuracy.md).
const CLEARLY_LOWER: f64 = 0.05;

/// Returns the points of the fit that starts from the former places, or the points `found` from
/// other starts if their cost is clearly lower.
pub(super) fn preferred(
    measured: &Measured,
    former: Option<&Embedding>,
    (cost, points): (f64, Vec<Vec<f64>>),
    dimensions: usize,
    descent: Descent,
) -> Result<Vec<Vec<f64>>, SimplexError> {
    if let Some(begin) = former.and_then(|former| where_it_was(measured, former, dimensions)) {
        let (kept_cost, kept) = converge(measured, begin, descent, LAST_ROUND)?;
        if cost >= kept_cost * (1.0 - CLEARLY_LOWER) {
            return Ok(kept);
        }
    }
    Ok(points)
}

/// Returns a start with each agent of the previous embedding at its former place. A new agent
/// starts at the former place of the nearest agent that has one. Returns `None` if the previous
/// embedding contains none of the agents.
fn where_it_was(measured: &Measured, former: &Embedding, dimensions: usize) -> Option<Vec<Vec<f64>>> {
    let had = |i: usize| former.placement(measured.agents[i]);
    let place = |i: usize| {
        let known = (0..measured.agents.len()).filter(|&j| had(j).is_some());
        let nearest = known.min_by(|&j, &k| measured.filled[i][j].total_cmp(&measured.filled[i][k]))?;
        let placement = had(i).or_else(|| had(nearest))?;
        Some(align::in_dimensions(&placement.coordinate, dimensions))
    };
    (0..measured.agents.len()).map(place).collect()
}
