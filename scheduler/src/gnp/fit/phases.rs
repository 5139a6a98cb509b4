//! Fits an embedding: places the landmarks first, then all agents, using the whole mesh.
//!
//! Phase 1 places the landmarks ("landmark operations" in Ng and Zhang's paper). Phase 1 starts
//! from a classical multidimensional scaling of the landmarks' distances, and minimises the sum of
//! squared relative errors. Phase 2 places all agents, including the landmarks. Phase 2 starts from
//! the landmarks' places and from a scaling of the whole mesh, and minimises Huber's loss of the
//! log errors.

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use crate::gnp::locate::simplex::SimplexError;
use crate::gnp::locate::with_switches::{self, Descent};
use crate::gnp::objective::{Anchor, Loss, rms_relative_error};
use crate::gnp::{Embedding, Mesh, Placement, PlainSwitches};
use crate::model::{AgentId, EmbeddingEpoch};

use super::error::{FitError, check};
use super::measured::Measured;
use super::sweeps::best_of;
use super::{former_places, mds, starts};

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
    let found = best_of(measured, begin, descent)?;
    former_places::preferred(measured, former, found, dimensions, descent)
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
