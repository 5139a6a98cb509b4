//! Holds the measured distances between the agents of a fit: closes gaps by the shortest chains of
//! measurements, scales the distances to coordinates, and refuses a fit with too few measurements,
//! landmarks or dimensions.
//!
//! The scaling is classical multidimensional scaling (Torgerson, "Multidimensional scaling: I.
//! Theory and method", 1952).

use std::collections::BTreeSet;

use nalgebra::{DMatrix, SymmetricEigen};

use crate::gnp::Mesh;
use crate::gnp::objective::{Anchor, relative_error, root_mean, softening};
use crate::model::{AgentId, Rtt, stats};

use super::locate::{Descent, SimplexError};
use super::mesh_and_distance::distance;

/// The agents that a chain of measurements connects to the landmarks, landmarks first, and their
/// distances in milliseconds.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) agents: Vec<AgentId>,
    /// For each agent, the indices of the agents whose distance to it was measured, and these
    /// distances.
    pub(super) rows: Vec<Vec<(usize, f64)>>,
    /// For measured pairs, the measured distance. For other pairs, the length of the shortest chain
    /// of measurements.
    pub(super) filled: Vec<Vec<f64>>,
}

impl Measured {
    pub(super) fn joined(mesh: &Mesh, landmarks: &[AgentId]) -> Result<Self, FitError> {
        for &landmark in landmarks {
            if !landmarks.iter().any(|&other| other != landmark && mesh.distance(landmark, other).is_some()) {
                return Err(FitError::UnmeasuredLandmark { landmark });
            }
        }
        let others = mesh.agents().into_iter().filter(|agent| !landmarks.contains(agent));
        let everyone: Vec<AgentId> = landmarks.iter().copied().chain(others).collect();
        let all = Self::of(everyone, |a, b| mesh.distance(a, b).map(Rtt::as_millis_f64));
        let joined: Vec<usize> = (0..all.agents.len()).filter(|&i| all.filled[0][i].is_finite()).collect();
        if let Some(&landmark) = landmarks.iter().find(|landmark| !joined.iter().any(|&i| all.agents[i] == **landmark))
        {
            return Err(FitError::Disconnected { landmark, first: landmarks[0] });
        }
        let agents = joined.iter().map(|&i| all.agents[i]).collect();
        Ok(Self::of(agents, |a, b| mesh.distance(a, b).map(Rtt::as_millis_f64)))
    }

    fn of(agents: Vec<AgentId>, measured: impl Fn(AgentId, AgentId) -> Option<f64>) -> Self {
        let row = |&a: &AgentId| -> Vec<(usize, f64)> {
            agents.iter().enumerate().filter_map(|(j, &b)| Some((j, measured(a, b)?))).collect()
        };
        let rows: Vec<_> = agents.iter().map(row).collect();
        let filled = fill_by_shortest_chains(&rows);
        Self { agents, rows, filled }
    }

    pub(super) fn first(&self, count: usize) -> Self {
        let cut = |row: &Vec<(usize, f64)>| row.iter().copied().filter(|&(j, _)| j < count).collect();
        Self {
            agents: self.agents[..count].to_vec(),
            rows: self.rows[..count].iter().map(cut).collect(),
            filled: self.filled[..count].iter().map(|row| row[..count].to_vec()).collect(),
        }
    }

    /// The scale: the median measured distance in milliseconds; 1 if nothing was measured. Step
    /// lengths and the random shifts of starting points are given as shares of the scale.
    pub(super) fn scale(&self) -> f64 {
        let mut all: Vec<f64> = self.rows.iter().flatten().map(|&(_, measured)| measured).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or(1.0)
    }

    pub(super) fn anchors<'a>(&self, agent: usize, points: &'a [Vec<f64>]) -> Vec<Anchor<'a>> {
        self.rows[agent].iter().map(|&(j, measured)| Anchor { coordinate: &points[j], measured }).collect()
    }

    /// Keeps only the agents whose indices satisfy `wanted`.
    pub(super) fn only(&self, wanted: impl Fn(usize) -> bool) -> Self {
        let kept: Vec<usize> = (0..self.agents.len()).filter(|&i| wanted(i)).collect();
        let renumbered = |j: usize| kept.binary_search(&j).ok();
        let row = |i: &usize| self.rows[*i].iter().filter_map(|&(j, d)| Some((renumbered(j)?, d))).collect();
        let filled = |i: &usize| kept.iter().map(|&j| self.filled[*i][j]).collect();
        Self {
            agents: kept.iter().map(|&i| self.agents[i]).collect(),
            rows: kept.iter().map(row).collect(),
            filled: kept.iter().map(filled).collect(),
        }
    }

    pub(super) fn cost(&self, points: &[Vec<f64>], descent: Descent) -> f64 {
        let softening = softening(descent.scale);
        (0..points.len()).map(|i| descent.loss.of(&points[i], &self.anchors(i, points), softening)).sum()
    }

    pub(super) fn rms_relative_error(&self, points: &[Vec<f64>]) -> f64 {
        root_mean(self.rows.iter().enumerate().flat_map(|(i, row)| {
            row.iter().map(move |&(j, measured)| relative_error(distance(&points[i], &points[j]), measured).powi(2))
        }))
    }
}

/// Returns the distance of every pair, with the Floyd–Warshall algorithm. `rows` contains for each
/// agent the indices of the agents whose distance to it was measured, and these distances. The
/// distance is infinite if no chain of measurements connects a pair.
fn fill_by_shortest_chains(rows: &[Vec<(usize, f64)>]) -> Vec<Vec<f64>> {
    let count = rows.len();
    let mut filled = vec![vec![f64::INFINITY; count]; count];
    for (i, row) in rows.iter().enumerate() {
        filled[i][i] = 0.0;
        for &(j, measured) in row {
            filled[i][j] = measured;
        }
    }
    for via in 0..count {
        for i in 0..count {
            for j in 0..count {
                let chain = filled[i][via] + filled[via][j];
                if chain < filled[i][j] {
                    filled[i][j] = chain;
                }
            }
        }
    }
    for (i, row) in rows.iter().enumerate() {
        for &(j, measured) in row {
            filled[i][j] = measured;
        }
    }
    filled
}

/// Returns points in `dimensions` dimensions whose inner products are nearest to the inner products
/// implied by `distances` (square, symmetric, in milliseconds). The points are the eigenvectors of
/// `B = -J D² J / 2` with the largest eigenvalues, each multiplied by the square root of its
/// eigenvalue. `D²` contains the squared distances, and multiplying by `J` subtracts means.
pub(super) fn classical_scaling(distances: &[Vec<f64>], dimensions: usize) -> Vec<Vec<f64>> {
    let count = distances.len();
    let squared = DMatrix::from_fn(count, count, |i, j| -0.5 * distances[i][j] * distances[i][j]);
    let size = stats::count(count.max(1));
    let means: Vec<f64> = (0..count).map(|i| squared.row(i).sum() / size).collect();
    let overall = means.iter().sum::<f64>() / size;
    let inner = DMatrix::from_fn(count, count, |i, j| squared[(i, j)] - means[i] - means[j] + overall);
    let axes = principal(inner);
    let mut points = vec![vec![0.0; dimensions]; count];
    for (axis, (value, vector)) in axes.into_iter().take(dimensions).enumerate() {
        let length = value.max(0.0).sqrt();
        for (point, component) in points.iter_mut().zip(vector) {
            point[axis] = component * length;
        }
    }
    points
}

/// Rotates points about their mean so that their variance is greatest along the first axis, then
/// along the second, and so on. Distances do not change, and the first two components become the
/// best two-dimensional projection. The component after the first `dimensions` (the height) does
/// not change.
pub(super) fn turn_to_principal_axes(points: &mut [Vec<f64>], dimensions: usize) {
    let count = stats::count(points.len().max(1));
    for axis in 0..dimensions {
        let mean = points.iter().map(|point| point[axis]).sum::<f64>() / count;
        for point in points.iter_mut() {
            point[axis] -= mean;
        }
    }
    let scatter = DMatrix::from_fn(dimensions, dimensions, |a, b| points.iter().map(|point| point[a] * point[b]).sum());
    let axes = principal(scatter);
    for point in points.iter_mut() {
        let turned: Vec<f64> =
            axes.iter().map(|(_, axis)| axis.iter().zip(point.iter()).map(|(a, p)| a * p).sum()).collect();
        point[..dimensions].copy_from_slice(&turned);
    }
}

/// Eigenvalues and eigenvectors of a symmetric matrix, largest eigenvalue first. Signs are chosen
/// so that the component with the largest absolute value is positive in each vector.
fn principal(matrix: DMatrix<f64>) -> Vec<(f64, Vec<f64>)> {
    let eigen = SymmetricEigen::new(matrix);
    let mut axes: Vec<(f64, Vec<f64>)> = eigen
        .eigenvalues
        .iter()
        .zip(eigen.eigenvectors.column_iter())
        .map(|(&value, vector)| (value, vector.iter().copied().collect()))
        .collect();
    axes.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (_, axis) in &mut axes {
        let largest = axis.iter().copied().max_by(|a, b| a.abs().total_cmp(&b.abs())).unwrap_or(1.0);
        if largest < 0.0 {
            axis.iter_mut().for_each(|component| *component = -*component);
        }
    }
    axes
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FitError {
    #[error("a map needs at least 2 landmarks, there are {there}")]
    TooFewLandmarks { there: usize },
    #[error("landmark {landmark} was given twice")]
    RepeatedLandmark { landmark: AgentId },
    #[error("a map needs at least 1 dimension")]
    NoDimension,
    #[error("{dimensions} dimensions need at least {needed} landmarks, there are {there}")]
    TooManyDimensions {
        dimensions: usize,
        /// Minimum number of landmarks: the number of dimensions plus one.
        needed: usize,
        there: usize,
    },
    #[error("landmark {landmark} has no measured distance to any other landmark")]
    UnmeasuredLandmark { landmark: AgentId },
    #[error("landmark {landmark} is joined to landmark {first} by no chain of measurements")]
    Disconnected { landmark: AgentId, first: AgentId },
    #[error("fit the map")]
    Solver(#[from] SimplexError),
}

/// Checks that the landmarks differ, and are enough for this many dimensions.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn between(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(p, q)| (p - q).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn scaling_recovers_points_from_their_distances() {
        let truth = [[0.0, 0.0], [30.0, 0.0], [0.0, 40.0], [30.0, 40.0], [10.0, 5.0]];
        let distances: Vec<Vec<f64>> = truth.iter().map(|a| truth.iter().map(|b| between(a, b)).collect()).collect();
        let points = classical_scaling(&distances, 2);
        for i in 0..truth.len() {
            for j in 0..truth.len() {
                assert!((between(&points[i], &points[j]) - distances[i][j]).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn turning_keeps_distances_and_sorts_the_axes() {
        let mut points = vec![vec![0.0, 1.0, 9.0], vec![1.0, 50.0, 9.0], vec![3.0, -40.0, 9.0], vec![2.0, 7.0, 9.0]];
        let before = between(&points[0], &points[2]);
        turn_to_principal_axes(&mut points, 2);
        assert!((between(&points[0], &points[2]) - before).abs() < 1e-9);
        let spread = |axis: usize| points.iter().map(|p| p[axis] * p[axis]).sum::<f64>();
        assert!(spread(0) > spread(1));
        assert!(points.iter().all(|point| point[2] == 9.0));
    }
}
