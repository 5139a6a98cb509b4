//! An embedding: the coordinates of one fit. Predicts the round trip between two of them, checks
//! stored parts, determines the number of dimensions, aligns a new fit with the previous embedding,
//! and projects coordinates onto a plane.
//!
//! Distances determine a fit only up to rotation, reflection and translation, so without an
//! alignment every refit would change every coordinate. The alignment is the orthogonal Procrustes
//! solution (Schönemann, "A generalized solution of the orthogonal Procrustes problem",
//! Psychometrika 31, 1966). The alignment uses the agents that are in both embeddings. Let the rows
//! of X be the agents' new coordinates, and the rows of Y the agents' former coordinates, both
//! centred and without heights. If XᵀY = UΣVᵀ, the rotation is UVᵀ.
//!
//! The alignment does not scale the map, because both embeddings are in milliseconds. The alignment
//! does not change heights, because heights have no direction.

use std::collections::BTreeMap;
use std::time::Duration;

use nalgebra::{DMatrix, SVD, SymmetricEigen};

use crate::gnp::switches::PlainSwitches;
use crate::model::stats::count;
use crate::model::{AgentId, EmbeddingEpoch, Rtt};

use super::mesh_and_distance::{distance, round_trip};

/// A host's coordinate in one embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    pub epoch: EmbeddingEpoch,
    /// One component per dimension, then the height; all in milliseconds.
    pub coordinate: Vec<f64>,
    /// Root mean square of the relative errors on the fitted measurements; 0.1 is 10 %.
    pub fit_error: f64,
}

/// A fit of the landmarks and of all agents that could be located from them.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    epoch: EmbeddingEpoch,
    dimensions: usize,
    landmarks: Vec<AgentId>,
    agents: BTreeMap<AgentId, Placement>,
    fit_error: f64,
    /// The median distance between the located agents, in milliseconds. Constants that represent
    /// distances on the map are given as fractions of this distance.
    scale: f64,
    switches: PlainSwitches,
}

/// The error for comparing coordinates of different epochs, whose distance would be meaningless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a placement of embedding {found} was compared in embedding {expected}")]
pub struct EpochMismatch {
    /// The epoch of the embedding whose method was called.
    pub expected: EmbeddingEpoch,
    pub found: EmbeddingEpoch,
}

impl Embedding {
    /// Sets the switches with which this embedding locates sites. [`Embedding::from_parts`] sets
    /// the defaults, because the switches used for the fit are not stored.
    #[must_use]
    pub fn with(self, switches: PlainSwitches) -> Self {
        Self { switches, ..self }
    }

    pub const fn epoch(&self) -> EmbeddingEpoch {
        self.epoch
    }

    /// Number of dimensions. A coordinate has one more component, the height.
    pub const fn dimensions(&self) -> usize {
        self.dimensions
    }

    /// The landmarks of the embedding's fit, in the order of their election.
    pub fn landmarks(&self) -> &[AgentId] {
        &self.landmarks
    }

    /// All located agents, including landmarks.
    pub const fn agents(&self) -> &BTreeMap<AgentId, Placement> {
        &self.agents
    }

    /// Root mean square of the landmarks' relative errors; 0.1 is 10 %.
    pub const fn fit_error(&self) -> f64 {
        self.fit_error
    }

    /// The median distance between the located agents, in milliseconds.
    pub(super) const fn scale(&self) -> f64 {
        self.scale
    }

    /// The switches with which this embedding locates sites.
    pub(super) const fn switches(&self) -> PlainSwitches {
        self.switches
    }

    /// Returns the agent's placement, or `None` if the agent could not be located.
    pub fn placement(&self, agent: AgentId) -> Option<&Placement> {
        self.agents.get(&agent)
    }

    pub fn predict(&self, a: &Placement, b: &Placement) -> Result<Rtt, EpochMismatch> {
        for placement in [a, b] {
            if placement.epoch != self.epoch {
                return Err(EpochMismatch { expected: self.epoch, found: placement.epoch });
            }
        }
        Ok(round_trip(distance(&a.coordinate, &b.coordinate)))
    }
}

/// The median distance between located agents, in milliseconds; 1 if fewer than two agents are
/// located.
fn scale(agents: &BTreeMap<AgentId, Placement>) -> f64 {
    let places: Vec<&[f64]> = agents.values().map(|placement| placement.coordinate.as_slice()).collect();
    let pairs = places.iter().enumerate().flat_map(|(i, a)| places[..i].iter().map(|b| distance(a, b)));
    let mut distances: Vec<f64> = pairs.filter(|distance| *distance > 0.0).collect();
    distances.sort_by(f64::total_cmp);
    distances.get(distances.len() / 2).copied().unwrap_or(1.0)
}

/// Stored parts do not form a valid embedding.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PartsError {
    /// The agent's coordinate has the wrong length, is not finite, or has a negative height.
    #[error("agent {agent} has no valid coordinate in {dimensions} dimensions")]
    Coordinate { agent: AgentId, dimensions: usize },
    #[error("agent {agent} is not placed in this embedding")]
    Epoch {
        agent: AgentId,
        #[source]
        source: EpochMismatch,
    },
    #[error("landmark {landmark} has no placement")]
    UnplacedLandmark { landmark: AgentId },
    #[error("an embedding needs at least one dimension")]
    NoDimension,
}

impl Embedding {
    /// Builds an embedding from stored parts.
    pub fn from_parts(
        epoch: EmbeddingEpoch,
        dimensions: usize,
        landmarks: Vec<AgentId>,
        agents: BTreeMap<AgentId, Placement>,
        fit_error: f64,
    ) -> Result<Self, PartsError> {
        if dimensions == 0 {
            return Err(PartsError::NoDimension);
        }
        for (&agent, placement) in &agents {
            if placement.epoch != epoch {
                let source = EpochMismatch { expected: epoch, found: placement.epoch };
                return Err(PartsError::Epoch { agent, source });
            }
            if !is_coordinate(&placement.coordinate, dimensions) {
                return Err(PartsError::Coordinate { agent, dimensions });
            }
        }
        if let Some(&landmark) = landmarks.iter().find(|landmark| !agents.contains_key(landmark)) {
            return Err(PartsError::UnplacedLandmark { landmark });
        }
        let scale = scale(&agents);
        Ok(Self { epoch, dimensions, landmarks, agents, fit_error, scale, switches: PlainSwitches::default() })
    }
}

/// Whether the coordinate has one component per dimension and a non-negative height.
pub(crate) fn is_coordinate(coordinate: &[f64], dimensions: usize) -> bool {
    coordinate.len() == dimensions + 1
        && coordinate.iter().all(|component| component.is_finite())
        && coordinate.last().is_some_and(|&height| height >= 0.0)
}

/// Minimum number of landmarks in a map, and of measurements needed to locate a site. Two distances
/// are too few, because even in one dimension they do not determine both a host's point and its
/// height.
pub const FEWEST_LANDMARKS: usize = 3;
/// Upper limit of the default number of dimensions. More dimensions do not improve the map, however
/// many landmarks it has (table 1 of the paper that the README cites).
const MOST_DIMENSIONS: usize = 8;

pub fn default_dimensions(landmarks: usize) -> usize {
    landmarks.saturating_sub(1).min(MOST_DIMENSIONS)
}

/// The number of dimensions of a fit. `requested` is the operator's choice; `None` means the
/// default number. A fit needs one more landmark than it has dimensions.
pub fn dimensions_of_fit(landmarks: usize, requested: Option<usize>) -> usize {
    requested.unwrap_or_else(|| default_dimensions(landmarks)).min(landmarks.saturating_sub(1))
}

/// The relative tolerance of the singular value decomposition.
const PRECISION: f64 = 1e-12;
/// Maximum number of iterations of the decomposition, which usually needs a few dozen.
const MOST_STEPS: usize = 1000;

/// Converts a coordinate to another number of dimensions: drops excess components, sets missing
/// components to zero, and keeps the height.
pub(super) fn in_dimensions(coordinate: &[f64], dimensions: usize) -> Vec<f64> {
    let (height, position) =
        coordinate.split_last().map_or((0.0, coordinate), |(height, position)| (*height, position));
    let mut changed: Vec<f64> = position.iter().copied().chain(std::iter::repeat(0.0)).take(dimensions).collect();
    changed.push(height);
    changed
}

/// Rotates, reflects and shifts the points so that agents of `former` come as near as possible to
/// their former places. Changes nothing if no agent is in both embeddings.
fn onto(former: &Embedding, agents: &[AgentId], points: &mut [Vec<f64>], dimensions: usize) {
    let both: Vec<(usize, Vec<f64>)> = (0..agents.len())
        .filter_map(|i| Some((i, in_dimensions(&former.placement(agents[i])?.coordinate, dimensions))))
        .collect();
    if both.is_empty() {
        return;
    }
    let new_centre = centre(both.iter().map(|&(i, _)| points[i].as_slice()), dimensions);
    let old_centre = centre(both.iter().map(|(_, old)| old.as_slice()), dimensions);
    let product = DMatrix::from_fn(dimensions, dimensions, |a, b| {
        both.iter().map(|(i, old)| (points[*i][a] - new_centre[a]) * (old[b] - old_centre[b])).sum::<f64>()
    });
    let turn = nearest_turn(product, dimensions);
    for point in points {
        let centred: Vec<f64> = point.iter().zip(&new_centre).map(|(component, centre)| component - centre).collect();
        for axis in 0..dimensions {
            let turned: f64 = centred.iter().enumerate().map(|(from, component)| component * turn[(from, axis)]).sum();
            point[axis] = turned + old_centre[axis];
        }
    }
}

/// Returns UVᵀ from the singular value decomposition of `product`, or the identity if the
/// decomposition fails.
fn nearest_turn(product: DMatrix<f64>, dimensions: usize) -> DMatrix<f64> {
    let none = || DMatrix::identity(dimensions, dimensions);
    if !product.iter().all(|value| value.is_finite()) {
        return none();
    }
    let decomposed = SVD::try_new(product, true, true, PRECISION, MOST_STEPS);
    match decomposed.map(|found| (found.u, found.v_t)) {
        Some((Some(u), Some(v_t))) => u * v_t,
        _ => none(),
    }
}

fn centre<'a>(points: impl ExactSizeIterator<Item = &'a [f64]>, dimensions: usize) -> Vec<f64> {
    let count = count(points.len().max(1));
    let mut sum = vec![0.0; dimensions];
    for point in points {
        for (total, component) in sum.iter_mut().zip(point) {
            *total += component;
        }
    }
    sum.into_iter().map(|total| total / count).collect()
}

impl Embedding {
    /// Returns the same embedding, rotated, reflected and shifted so that its agents come as near
    /// as possible to their places in `former`. Distances do not change.
    #[must_use]
    pub fn aligned_to(mut self, former: &Self) -> Self {
        let agents: Vec<AgentId> = self.agents.keys().copied().collect();
        let mut points: Vec<Vec<f64>> = self.agents.values().map(|placement| placement.coordinate.clone()).collect();
        onto(former, &agents, &mut points, self.dimensions);
        for (placement, point) in self.agents.values_mut().zip(points) {
            placement.coordinate = point;
        }
        self
    }

    /// Returns how far each agent that is in both embeddings moved from its place in `former`,
    /// shortest move first. A move is the distance between the agent's two points, without their
    /// heights, plus the change in height. The agent's distance to a host that did not move changes
    /// by at most this amount.
    pub fn moves_from(&self, former: &Self) -> Vec<Duration> {
        let dimensions = self.dimensions.max(former.dimensions);
        let moved = |(agent, placement): (&AgentId, &Placement)| {
            let old = in_dimensions(&former.placement(*agent)?.coordinate, dimensions);
            let new = in_dimensions(&placement.coordinate, dimensions);
            let square: f64 = new.iter().zip(&old).take(dimensions).map(|(p, q)| (p - q) * (p - q)).sum();
            let millis = square.sqrt() + (new[dimensions] - old[dimensions]).abs();
            // Coordinates are finite, but their distance can exceed the range of a duration.
            Some(Duration::try_from_secs_f64(millis / 1e3).unwrap_or(Duration::MAX))
        };
        let mut moves: Vec<Duration> = self.agents.iter().filter_map(moved).collect();
        moves.sort_unstable();
        moves
    }

    /// The median of [`Embedding::moves_from`]; `None` if no agent is in both embeddings.
    pub fn median_move_from(&self, former: &Self) -> Option<Duration> {
        let moves = self.moves_from(former);
        moves.get(moves.len() / 2).copied()
    }
}

/// Projects the points onto their two principal components. Also returns the share of the variance
/// that these components explain.
pub fn project(places: &[&[f64]], dimensions: usize) -> (Vec<[f64; 2]>, f64) {
    let mut points = DMatrix::from_fn(places.len(), dimensions, |row, column| places[row][column]);
    for mut column in points.column_iter_mut() {
        let mean = column.mean();
        column.add_scalar_mut(-mean);
    }
    let eigen = SymmetricEigen::new(points.transpose() * &points);
    let mut order: Vec<usize> = (0..dimensions).collect();
    order.sort_by(|a, b| eigen.eigenvalues[*b].total_cmp(&eigen.eigenvalues[*a]));
    let along = |row: usize, rank: usize| {
        order.get(rank).map_or(0.0, |&component| points.row(row).transpose().dot(&eigen.eigenvectors.column(component)))
    };
    let total: f64 = eigen.eigenvalues.iter().sum();
    let shown: f64 = order.iter().take(2).map(|&component| eigen.eigenvalues[component]).sum();
    let projected = (0..places.len()).map(|row| [along(row, 0), along(row, 1)]).collect();
    (projected, if total > 0.0 { shown / total } else { 1.0 })
}

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use crate::gnp::fixture::{EPOCH, agent, fitted, hosts, rtt};
    use crate::gnp::mesh_and_distance::distance;
    use crate::gnp::{Mesh, PlainSwitches, fit, fit_with};
    use crate::model::EmbeddingEpoch;

    use super::*;

    #[test]
    fn placements_of_another_epoch_are_refused() {
        let map = fitted(&hosts(4, 2, 3), 4, 2, 3, 1.0);
        let here = map.placement(agent(1)).unwrap();
        let elsewhere = Placement { epoch: EmbeddingEpoch::new(8), ..here.clone() };
        let mismatch = EpochMismatch { expected: EPOCH, found: EmbeddingEpoch::new(8) };
        assert_eq!(map.predict(here, &elsewhere), Err(mismatch));
        assert_eq!(map.predict(&elsewhere, here), Err(mismatch));
    }

    #[test]
    fn stored_parts_are_put_together_again_and_broken_ones_refused() {
        let map = fitted(&hosts(5, 2, 3), 4, 2, 3, 1.0);
        let again = |agents: &BTreeMap<AgentId, Placement>| {
            Embedding::from_parts(EPOCH, 2, map.landmarks().to_vec(), agents.clone(), map.fit_error())
        };
        assert_eq!(again(map.agents()), Ok(map.clone()));
        for broken in [vec![1.0, 2.0], vec![1.0, f64::NAN, 0.0], vec![1.0, 2.0, -0.5]] {
            let mut agents = map.agents().clone();
            agents.get_mut(&agent(1)).unwrap().coordinate = broken;
            assert_eq!(again(&agents), Err(PartsError::Coordinate { agent: agent(1), dimensions: 2 }));
        }
        let mut agents = map.agents().clone();
        agents.remove(&agent(3));
        assert_eq!(again(&agents), Err(PartsError::UnplacedLandmark { landmark: agent(3) }));
    }

    #[test]
    fn dimensions_default_to_eight_or_one_below_the_landmarks() {
        assert_eq!([0, 1, 2, 5, 9, 15].map(default_dimensions), [0, 0, 1, 4, 8, 8]);
        assert_eq!([None, Some(3), Some(8)].map(|requested| dimensions_of_fit(9, requested)), [8, 3, 8]);
        assert_eq!([0, 1, 4].map(|landmarks| dimensions_of_fit(landmarks, Some(8))), [0, 0, 3]);
    }

    const DIMENSIONS: usize = 3;

    fn agents(count: i64) -> Vec<AgentId> {
        (0..count).map(AgentId::new).collect()
    }

    fn drawn(count: i64, seed: u64) -> Vec<Vec<f64>> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut point = || (0..=DIMENSIONS).map(|_| rng.random_range(0.0..100.0)).collect();
        (0..count).map(|_| point()).collect()
    }

    fn embedding(epoch: i64, points: &[Vec<f64>]) -> Embedding {
        let epoch = EmbeddingEpoch::new(epoch);
        let placed = (0..).map(AgentId::new).zip(points.iter().cloned());
        let placed = placed.map(|(agent, coordinate)| (agent, Placement { epoch, coordinate, fit_error: 0.0 }));
        let landmarks = agents(i64::try_from(points.len()).unwrap());
        Embedding::from_parts(epoch, points[0].len() - 1, landmarks, placed.collect(), 0.0).unwrap()
    }

    /// Swaps two axes, reflects the third, rotates by 45° and shifts.
    fn disguised(point: &[f64]) -> Vec<f64> {
        let half = std::f64::consts::FRAC_1_SQRT_2;
        let turned = [half * (point[0] - point[1]), half * (point[0] + point[1])];
        vec![turned[1] + 40.0, -point[2] - 7.0, turned[0] + 1.0, point[3]]
    }

    #[test]
    fn a_turned_mirrored_and_shifted_map_is_carried_back_exactly() {
        let truth = drawn(9, 1);
        let former = embedding(1, &truth);
        let mut points: Vec<Vec<f64>> = truth.iter().map(|point| disguised(point)).collect();
        let before = embedding(2, &points);
        assert!(before.median_move_from(&former).unwrap() > Duration::from_millis(20));
        onto(&former, &agents(9), &mut points, DIMENSIONS);
        let after = embedding(2, &points);
        assert!(after.moves_from(&former).pop().unwrap() < Duration::from_nanos(100));
        for (i, j) in [(0, 1), (3, 8), (2, 7)] {
            let (was, is) = (distance(&truth[i], &truth[j]), distance(&points[i], &points[j]));
            assert!((was - is).abs() < 1e-9, "distances stay");
        }
    }

    #[test]
    fn the_scale_is_not_touched_and_strangers_come_along() {
        let truth = drawn(8, 2);
        // The former map has only the first five agents, and its distances are twice as long.
        let doubled: Vec<Vec<f64>> =
            truth[..5].iter().map(|point| point.iter().map(|component| component * 2.0).collect()).collect();
        let former = embedding(1, &doubled);
        let mut points: Vec<Vec<f64>> = truth.iter().map(|point| disguised(point)).collect();
        onto(&former, &agents(8), &mut points, DIMENSIONS);
        for i in 0..8 {
            for j in 0..8 {
                let was = distance(&truth[i], &truth[j]);
                assert!((was - distance(&points[i], &points[j])).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn few_or_no_agents_in_both_and_other_dimensions_are_survived() {
        let truth = drawn(6, 3);
        for shared in 0..3 {
            let former = embedding(1, &[truth[..shared].to_vec(), drawn(1, 9)].concat());
            let mut points: Vec<Vec<f64>> = truth.iter().map(|point| disguised(point)).collect();
            let strangers: Vec<AgentId> = (100..).map(AgentId::new).take(6).collect();
            onto(&former, &strangers, &mut points, DIMENSIONS);
            assert_eq!(points[0], disguised(&truth[0]), "nobody is in both");
            onto(&former, &agents(6), &mut points, DIMENSIONS);
            assert!(points.iter().flatten().all(|component| component.is_finite()));
        }
        let flat: Vec<Vec<f64>> = truth.iter().map(|point| vec![point[0], point[1], point[3]]).collect();
        let mut points = flat.clone();
        onto(&embedding(1, &truth), &agents(6), &mut points, 2);
        assert_eq!(embedding(2, &points).moves_from(&embedding(1, &truth)).len(), 6);
        assert_eq!(in_dimensions(&[1.0, 2.0, 9.0], 3), [1.0, 2.0, 0.0, 9.0]);
        assert_eq!(in_dimensions(&[1.0, 2.0, 9.0], 1), [1.0, 9.0]);
    }

    #[test]
    fn a_refit_of_a_network_measured_again_moves_its_agents_little() {
        let mut truth = drawn(12, 4);
        truth.iter_mut().for_each(|point| point[DIMENSIONS] /= 10.0);
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        // Each measurement has a relative error of at most 2.5 %.
        let mut measured = || {
            let mut mesh = Mesh::new();
            for (a, p) in agents(12).into_iter().zip(&truth) {
                for (b, q) in agents(12).into_iter().zip(&truth).filter(|(b, _)| *b != a) {
                    let millis = distance(p, q) * rng.random_range(0.975..1.025);
                    mesh.insert(a, b, rtt(millis));
                }
            }
            mesh
        };
        let landmarks = agents(6);
        let mut former = fit(EmbeddingEpoch::new(1), &measured(), &landmarks, DIMENSIONS, 1).unwrap();
        for epoch in 2..5 {
            let number = EmbeddingEpoch::new(epoch);
            let next = fit_with(
                PlainSwitches::default(),
                Some(&former),
                number,
                &measured(),
                &landmarks,
                DIMENSIONS,
                epoch.unsigned_abs(),
            )
            .unwrap();
            let moved = next.median_move_from(&former).unwrap();
            assert!(moved < Duration::from_millis(6), "{moved:?}");
            former = next;
        }
    }

    #[test]
    fn the_projection_keeps_what_differs_most() {
        let places: Vec<Vec<f64>> = (0..10).map(|step| vec![1.0, f64::from(step) * 3.0, f64::from(step % 2)]).collect();
        let places: Vec<&[f64]> = places.iter().map(Vec::as_slice).collect();
        let (projected, explained) = project(&places, 3);
        assert!(explained > 0.999, "{explained}");
        assert!(((projected[9][0] - projected[0][0]).abs() - 27.0).abs() < 0.2, "{projected:?}");
    }
}
