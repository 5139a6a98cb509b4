//! Projects coordinates onto a plane: onto the two directions in which they differ most.

use nalgebra::{DMatrix, SymmetricEigen};

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
    use super::*;

    #[test]
    fn the_projection_keeps_what_differs_most() {
        let places: Vec<Vec<f64>> = (0..10).map(|step| vec![1.0, f64::from(step) * 3.0, f64::from(step % 2)]).collect();
        let places: Vec<&[f64]> = places.iter().map(Vec::as_slice).collect();
        let (projected, explained) = project(&places, 3);
        assert!(explained > 0.999, "{explained}");
        assert!(((projected[9][0] - projected[0][0]).abs() - 27.0).abs() < 0.2, "{projected:?}");
    }
}
