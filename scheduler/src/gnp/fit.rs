//! Fits an embedding: chooses the starting arrangements, moves the agents in sweeps, keeps them
//! near their former places unless another arrangement is clearly better, and accepts or rejects a
//! new fit by comparing its error with the error of the last good fit.
//!
//! Phase 1 places the landmarks ("landmark operations" in Ng and Zhang's paper). Phase 1 starts
//! from a classical multidimensional scaling of the landmarks' distances, and minimises the sum of
//! squared relative errors. Phase 2 places all agents, including the landmarks. Phase 2 starts from
//! the landmarks' places and from a scaling of the whole mesh, and minimises Huber's loss of the
//! log errors.
//!
//! A refit also starts from every agent's place in the previous embedding, and keeps the result of
//! this start unless another start reaches a clearly lower cost. The cost has several minima of
//! almost the same value, so without this preference a refit could switch to another minimum, and
//! move agents whose distances did not change.
//!
//! Both phases use Nelder and Mead's simplex. Each run of the simplex moves one agent while all
//! others are fixed (block coordinate descent), because a simplex over more than a few dozen
//! components does not converge. A *sweep* moves every agent once. Sweeps are repeated until a
//! sweep hardly lowers the cost.

use std::collections::BTreeMap;

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::gnp::objective::{Anchor, Loss, rms_relative_error, softening};
use crate::gnp::{Embedding, Mesh, Placement, PlainSwitches};
use crate::model::{AgentId, EmbeddingEpoch};

use super::embedding::in_dimensions;
use super::locate::{Descent, SimplexError, StopRule, place_with_switches};
use super::measured_distances::{FitError, Measured, check, classical_scaling, turn_to_principal_axes};

/// Fits an embedding: first the `landmarks`, then all agents that a chain of measurements connects
/// to the landmarks. Other agents get no placement. Equal arguments give equal embeddings.
pub fn fit(
    epoch: EmbeddingEpoch,
    mesh: &Mesh,
    landmarks: &[AgentId],
    dimensions: usize,
    seed: u64,
) -> Result<Embedding, FitError> {
    fit_with(PlainSwitches::default(), None, epoch, mesh, landmarks, dimensions, seed)
}

/// Fits an embedding as [`fit`] does, with the given switches. If there is a `former` embedding,
/// the fit also starts from the former places. The result is aligned with the former places
/// (Procrustes), so that an agent whose distances did not change keeps its coordinate.
pub fn fit_with(
    switches: PlainSwitches,
    former: Option<&Embedding>,
    epoch: EmbeddingEpoch,
    mesh: &Mesh,
    landmarks: &[AgentId],
    dimensions: usize,
    seed: u64,
) -> Result<Embedding, FitError> {
    check(landmarks, dimensions)?;
    let measured = Measured::joined(mesh, landmarks)?;
    let descent = Descent::of(switches, measured.scale());
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let first = measured.first(landmarks.len());
    let jointly = Descent { loss: Loss::RELATIVE, ..descent };
    let begin = starts(&first, dimensions, jointly, &mut rng);
    let (_, anchors) = best_of(&first, begin, jointly)?;
    let (measured, mut points) = if switches.mesh {
        let points = by_mesh(&measured, &anchors, former, dimensions, descent, &mut rng)?;
        (measured, points)
    } else {
        by_landmarks(&measured, anchors, descent)?
    };
    for point in &mut points {
        if let Some(height) = point.last_mut() {
            *height = height.abs();
        }
    }
    turn_to_principal_axes(&mut points, dimensions);
    let fit_error = first.rms_relative_error(&points[..landmarks.len()]);
    let agents: BTreeMap<AgentId, Placement> = (0..measured.agents.len())
        .map(|i| {
            let fit_error = rms_relative_error(&points[i], &measured.anchors(i, &points));
            (measured.agents[i], Placement { epoch, coordinate: points[i].clone(), fit_error })
        })
        .collect();
    let embedding = Embedding::from_parts(epoch, dimensions, landmarks.to_vec(), agents, fit_error)
        .expect("a fitted point has a finite component a dimension and a height");
    Ok(match former {
        Some(former) => embedding.aligned_to(former),
        None => embedding,
    }
    .with(switches))
}

/// Places all agents by the distances between all of them.
fn by_mesh(
    measured: &Measured,
    landmarks: &[Vec<f64>],
    former: Option<&Embedding>,
    dimensions: usize,
    descent: Descent,
    rng: &mut ChaCha8Rng,
) -> Result<Vec<Vec<f64>>, SimplexError> {
    let mut begin = starts(measured, dimensions, descent, rng);
    begin.push(start_around(measured, landmarks));
    let found = best_of(measured, begin, descent)?;
    preferred(measured, former, found, dimensions, descent)
}

/// Places every non-landmark agent by its distances to the landmarks ("ordinary host operations" in
/// Ng and Zhang's paper). `points` are the landmarks' coordinates. Agents without a distance to any
/// landmark are left out.
fn by_landmarks(
    measured: &Measured,
    mut points: Vec<Vec<f64>>,
    descent: Descent,
) -> Result<(Measured, Vec<Vec<f64>>), SimplexError> {
    let landmarks = points.len();
    let has_distance = |i: usize| i < landmarks || measured.rows[i].iter().any(|&(j, _)| j < landmarks);
    let measured = measured.only(has_distance);
    for row in &measured.rows[landmarks..] {
        let near = row.iter().filter(|&&(j, _)| j < landmarks);
        let anchors: Vec<Anchor<'_>> = near.map(|&(j, measured)| Anchor { coordinate: &points[j], measured }).collect();
        let point = place_with_switches(&anchors, None, descent)?;
        points.push(point);
    }
    Ok((measured, points))
}

/// Number of randomly perturbed copies of the classical scaling.
const RESTARTS: usize = 1;
/// Maximum random shift of each component in a perturbed copy, as a share of the median distance.
const DISTURBANCE: f64 = 0.2;

/// Returns the classical scaling of the distances after subtracting the estimated heights, and
/// randomly perturbed copies of the scaling.
fn starts(measured: &Measured, dimensions: usize, descent: Descent, rng: &mut ChaCha8Rng) -> Vec<Vec<Vec<f64>>> {
    let heights = if descent.height { heights(&measured.filled) } else { vec![0.0; measured.agents.len()] };
    let level: Vec<Vec<f64>> = measured
        .filled
        .iter()
        .enumerate()
        .map(|(i, row)| {
            let without = |(j, d): (usize, &f64)| if i == j { 0.0 } else { (d - heights[i] - heights[j]).max(0.0) };
            row.iter().enumerate().map(without).collect()
        })
        .collect();
    let mut points = classical_scaling(&level, dimensions);
    for (point, height) in points.iter_mut().zip(heights) {
        point.push(height);
    }
    let mut all = vec![points.clone()];
    for _ in 0..RESTARTS {
        let mut disturbed = points.clone();
        let moves = if descent.height { dimensions + 1 } else { dimensions };
        for component in disturbed.iter_mut().flat_map(|point| &mut point[..moves]) {
            *component += rng.random_range(-1.0..1.0) * DISTURBANCE * descent.scale;
        }
        all.push(disturbed);
    }
    all
}

/// A first estimate of each agent's height: a quarter of the least time that a detour through the
/// agent adds to the distance between two other agents. A detour adds at least twice the agent's
/// height, so the greatest possible height is half of this time. The estimate is half of the
/// greatest possible height.
fn heights(filled: &[Vec<f64>]) -> Vec<f64> {
    let count = filled.len();
    let detour = |i: usize| {
        let pairs = (0..count).flat_map(|j| (0..j).map(move |k| (j, k))).filter(|&(j, k)| j != i && k != i);
        let least = pairs.map(|(j, k)| filled[i][j] + filled[i][k] - filled[j][k]).fold(f64::INFINITY, f64::min);
        if least.is_finite() { (least / 4.0).max(0.0) } else { 0.0 }
    };
    (0..count).map(detour).collect()
}

/// Returns a start with the landmarks at the points `landmarks`, and every other agent at the point
/// of its nearest landmark.
fn start_around(measured: &Measured, landmarks: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let nearest = |row: &Vec<f64>| {
        let (best, _) = row[..landmarks.len()]
            .iter()
            .enumerate()
            .fold((0, f64::INFINITY), |(best, least), (i, &d)| if d < least { (i, d) } else { (best, least) });
        landmarks[best].clone()
    };
    let others = measured.filled[landmarks.len()..].iter().map(nearest);
    landmarks.iter().cloned().chain(others).collect()
}

/// A refit keeps the result of the start from the previous embedding unless the cost of another
/// start is lower by more than this share. If an unchanged network is measured again, the median
/// agent moves by 1.7 ms with a start from the previous embedding, and by 6 ms without one
/// (docs/evaluation/accuracy.md).
const CLEARLY_LOWER: f64 = 0.05;

/// Returns the points of the fit that starts from the former places, or the points `found` from
/// other starts if their cost is clearly lower.
fn preferred(
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
        Some(in_dimensions(&placement.coordinate, dimensions))
    };
    (0..measured.agents.len()).map(place).collect()
}

/// Number of sweeps from every start; a sweep moves every agent once. After these sweeps, only the
/// best start continues.
const FIRST_SWEEPS: usize = 4;
/// Maximum number of sweeps.
const MOST_SWEEPS: usize = 40;
/// Sweeping ends when a sweep lowers the cost by less than this share.
const CONVERGED: f64 = 1e-3;
/// The stopping rule of the simplex that moves one agent in one sweep.
const STOP: StopRule = StopRule { steps: 150, tolerance: 1e-4 };
/// The number of the first sweep with the final step length. Sweeps are counted from 0 (`round`). A
/// fit that starts near the optimum begins with this sweep number, because long steps would be
/// useless there.
const LAST_ROUND: usize = 11;
/// The simplex's step lengths in the first sweep, and from the sweep [`LAST_ROUND`] on, as shares
/// of the median measured distance.
const STEPS: (f64, f64) = (0.1, 0.01);

/// Sweeps [`FIRST_SWEEPS`] times from every start, then continues from the best result until it
/// converges. Returns the cost and the points.
fn best_of(
    measured: &Measured,
    starts: Vec<Vec<Vec<f64>>>,
    descent: Descent,
) -> Result<(f64, Vec<Vec<f64>>), SimplexError> {
    let mut best: Option<(f64, Vec<Vec<f64>>)> = None;
    for mut points in starts {
        for round in 0..FIRST_SWEEPS {
            sweep(measured, &mut points, descent, step(round))?;
        }
        let cost = measured.cost(&points, descent);
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, points));
        }
    }
    let (_, points) = best.expect("there is always the scaled start");
    converge(measured, points, descent, FIRST_SWEEPS)
}

/// Sweeps until convergence. `round` is the number of the first sweep, and determines its step
/// length. Returns the cost and the points.
fn converge(
    measured: &Measured,
    mut points: Vec<Vec<f64>>,
    descent: Descent,
    round: usize,
) -> Result<(f64, Vec<Vec<f64>>), SimplexError> {
    let mut cost = measured.cost(&points, descent);
    for further in 0..MOST_SWEEPS - FIRST_SWEEPS {
        sweep(measured, &mut points, descent, step(round + further))?;
        let lower = measured.cost(&points, descent);
        if lower >= cost * (1.0 - CONVERGED) {
            return Ok((lower, points));
        }
        cost = lower;
    }
    Ok((cost, points))
}

/// The step length of sweep number `round`, as a share of the median distance. The steps of each
/// sweep are a fifth shorter than those of the previous sweep, but never shorter than the final
/// length.
fn step(round: usize) -> f64 {
    let shrink = 0.8_f64.powi(i32::try_from(round).unwrap_or(i32::MAX));
    (STEPS.0 * shrink).max(STEPS.1)
}

/// Moves each agent once, to minimise the errors of the agent's measured distances.
fn sweep(measured: &Measured, points: &mut [Vec<f64>], descent: Descent, step: f64) -> Result<(), SimplexError> {
    let softening = softening(descent.scale);
    for i in 0..points.len() {
        let anchors = measured.anchors(i, points);
        let cost = |host: &[f64]| descent.loss.of(host, &anchors, softening);
        points[i] = descent.minimise(cost, &points[i], step, STOP)?;
    }
    Ok(())
}

/// A fit is rejected if its error is more than this many times the error of the last good fit.
const ERROR_GROWTH: f64 = 2.0;
/// A fit with at most this relative error is never rejected, however small the error of the last
/// good fit was.
const USUAL_ERROR: f64 = 0.5;

/// The error for a fit so bad that the last good fit must stay in use.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error(
    "the fit's relative error is {error:.3}, that of the last good fit was {good:.3}: the last good one stays in use"
)]
pub struct RejectedFit {
    error: f64,
    good: f64,
}

/// Accepts or rejects a fit.
///
/// # Errors
/// Fails if the fit is so bad that the last good fit must stay in use.
pub fn check_fit(fitted: &Embedding, last_good: Option<f64>) -> Result<(), RejectedFit> {
    let error = fitted.fit_error();
    if is_untrustworthy(error, last_good) {
        return Err(RejectedFit { error, good: last_good.unwrap_or(0.0) });
    }
    Ok(())
}

/// Whether a fit is so much worse than the last good fit that it must not replace it.
fn is_untrustworthy(fit_error: f64, last_good: Option<f64>) -> bool {
    !fit_error.is_finite() || last_good.is_some_and(|good| fit_error > (ERROR_GROWTH * good).max(USUAL_ERROR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_that_is_much_worse_than_the_last_good_one_is_not_trusted() {
        assert!(!is_untrustworthy(0.4, Some(0.1)), "usual");
        assert!(is_untrustworthy(0.6, Some(0.1)));
        assert!(!is_untrustworthy(0.6, Some(0.4)));
        assert!(!is_untrustworthy(0.9, None), "there is nothing better");
        assert!(is_untrustworthy(f64::NAN, None));
    }
}
