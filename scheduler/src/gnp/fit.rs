//! Fits an embedding: places the landmarks first, then all agents, using the whole mesh.
//!
//! Phase 1 places the landmarks ("landmark operations" in Ng and Zhang's paper). Phase 1 starts
//! from a classical multidimensional scaling of the landmarks' distances, and minimises the sum of
//! squared relative errors. Phase 2 places all agents, including the landmarks. Phase 2 starts from
//! the landmarks' places and from a scaling of the whole mesh, and minimises Huber's loss of the
//! log errors.
//!
//! Both phases use Nelder and Mead's simplex. Each run of the simplex moves one agent while all
//! others are fixed (block coordinate descent), because a simplex over more than a few dozen
//! components does not converge. A *sweep* moves every agent once. Sweeps are repeated until a
//! sweep hardly lowers the cost.
//!
//! A refit also starts from every agent's place in the previous embedding, and keeps the result of
//! this start unless another start reaches a clearly lower cost. The cost has several minima of
//! almost the same value, so without this preference a refit could switch to another minimum, and
//! move agents whose distances did not change.

use std::collections::{BTreeMap, BTreeSet};

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use crate::model::{AgentId, EmbeddingEpoch};

use super::locate::simplex::{SimplexError, StopRule};
use super::locate::with_switches::{self, Descent};
use super::objective::{Anchor, Loss, rms_relative_error, softening};
use super::{Embedding, Mesh, Placement, PlainSwitches};

mod error;
pub(super) mod mds;
mod measured;
pub(super) mod rejection;
mod shortest_chains;
mod starts;

pub use error::FitError;
pub(super) use measured::Measured;

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

/// A refit keeps the result of the start from the previous embedding unless the cost of another
/// start is lower by more than this share. If an unchanged network is measured again, the median
/// agent moves by 1.7 ms with a start from the previous embedding, and by 6 ms without one
/// (docs/evaluation/accuracy.md).
const CLEARLY_LOWER: f64 = 0.05;

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
    let begin = starts::starts(&first, dimensions, jointly, &mut rng);
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
    mds::turn_to_principal_axes(&mut points, dimensions);
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
    let mut begin = starts::starts(measured, dimensions, descent, rng);
    begin.push(starts::around(measured, landmarks));
    let (cost, points) = best_of(measured, begin, descent)?;
    if let Some(begin) = former.and_then(|former| starts::where_it_was(measured, former, dimensions)) {
        let (kept_cost, kept) = converge(measured, begin, descent, LAST_ROUND)?;
        if cost >= kept_cost * (1.0 - CLEARLY_LOWER) {
            return Ok(kept);
        }
    }
    Ok(points)
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
        let point = with_switches::place(&anchors, None, descent)?;
        points.push(point);
    }
    Ok((measured, points))
}

pub(super) fn check(landmarks: &[AgentId], dimensions: usize) -> Result<(), FitError> {
    let there = landmarks.len();
    if there < 2 {
        return Err(FitError::TooFewLandmarks { there });
    }
    if dimensions == 0 {
        return Err(FitError::NoDimension);
    }
    if dimensions >= there {
        return Err(FitError::TooManyDimensions { dimensions, needed: dimensions.saturating_add(1), there });
    }
    let mut seen = BTreeSet::new();
    match landmarks.iter().find(|landmark| !seen.insert(**landmark)) {
        Some(&landmark) => Err(FitError::RepeatedLandmark { landmark }),
        None => Ok(()),
    }
}

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
