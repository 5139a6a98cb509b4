//! Classical multidimensional scaling (Torgerson, "Multidimensional scaling: I. Theory and method",
//! 1952), from which fits start, and the rotation to principal axes.

use nalgebra::{DMatrix, SymmetricEigen};

use crate::model::stats;

/// Returns points in `dimensions` dimensions whose inner products are nearest to the inner products
/// implied by `distances` (square, symmetric, in milliseconds). The points are the eigenvectors of
/// `B = -J D² J / 2` with the largest eigenvalues, each multiplied by the square root of its
/// eigenvalue. `D²` contains the squared distances, and multiplying by `J` subtracts means.
pub(in crate::gnp) fn classical(distances: &[Vec<f64>], dimensions: usize) -> Vec<Vec<f64>> {
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
pub(in crate::gnp) fn turn_to_principal_axes(points: &mut [Vec<f64>], dimensions: usize) {
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
        let points = classical(&distances, 2);
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
