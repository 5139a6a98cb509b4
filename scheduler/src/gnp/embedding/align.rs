//! Aligns a new fit with the previous embedding, and computes how far the agents moved.
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

use std::time::Duration;

use nalgebra::{DMatrix, SVD};

use crate::model::AgentId;
use crate::model::stats::count;

use super::coordinates::{Embedding, Placement};

/// The relative tolerance of the singular value decomposition.
const PRECISION: f64 = 1e-12;
/// Maximum number of iterations of the decomposition, which usually needs a few dozen.
const MOST_STEPS: usize = 1000;

/// Converts a coordinate to another number of dimensions: drops excess components, sets missing
/// components to zero, and keeps the height.
pub(in crate::gnp) fn in_dimensions(coordinate: &[f64], dimensions: usize) -> Vec<f64> {
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

#[cfg(test)]
mod tests {
    use rand::rngs::ChaCha8Rng;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::gnp::distance::distance;
    use crate::gnp::fixture::rtt;
    use crate::gnp::{Mesh, PlainSwitches, fit, fit_with};
    use crate::model::EmbeddingEpoch;

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
}
