//! Draws coordinates on a plane: projects the coordinates on the two directions in which they
//! differ most, and chooses the visible part of the plane.

use nalgebra::{DMatrix, SymmetricEigen};

use crate::model::stats::count;

/// In each direction, the frame (the visible part of the plane) contains the points from the
/// quantile `1 - FRAMED` to the quantile `FRAMED`.
const FRAMED: f64 = 0.97;
/// Points outside the frame are drawn inside it, at this distance from its edge, in units of the
/// drawing.
const EDGE: f64 = 12.0;

/// Projects the points on their two principal components. Also returns the share of the variance
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

/// The visible part of the plane. The scale is the same in both directions.
#[derive(Debug, Clone, Copy)]
pub struct Frame {
    size: [f64; 2],
    middle: [f64; 2],
    /// The length, in the drawing, of one unit of the points' components.
    pub scale: f64,
}

impl Frame {
    /// Returns a frame around most of the points. `size` is the size of the drawing, and `margin`
    /// its empty margin; both are in units of the drawing.
    pub fn around(points: &[[f64; 2]], size: [f64; 2], margin: f64) -> Self {
        let range = |axis: usize| {
            let mut values: Vec<f64> = points.iter().map(|point| point[axis]).collect();
            values.sort_by(f64::total_cmp);
            let last = count(values.len().saturating_sub(1));
            let at = |share: f64| {
                let rank = (0..values.len()).find(|rank| count(*rank) >= share * last).unwrap_or(0);
                values.get(rank).copied().unwrap_or(0.0)
            };
            (at(1.0 - FRAMED), at(FRAMED))
        };
        let (x, y) = (range(0), range(1));
        let room = |length: f64, (low, high): (f64, f64)| (length - 2.0 * margin) / (high - low).max(1.0);
        let scale = room(size[0], x).min(room(size[1], y)) * 0.94;
        Self { size, middle: [f64::midpoint(x.0, x.1), f64::midpoint(y.0, y.1)], scale }
    }

    /// Returns where to draw a point, and whether the point is inside the frame.
    pub fn place(&self, point: [f64; 2]) -> ([f64; 2], bool) {
        let free = [
            self.size[0] / 2.0 + (point[0] - self.middle[0]) * self.scale,
            self.size[1] / 2.0 - (point[1] - self.middle[1]) * self.scale,
        ];
        let held = [free[0].clamp(EDGE, self.size[0] - EDGE), free[1].clamp(EDGE, self.size[1] - EDGE)];
        (held, free == held)
    }
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

    #[test]
    fn far_outliers_are_drawn_on_the_edge() {
        let mut points: Vec<[f64; 2]> = (0..200).map(|step| [f64::from(step % 20), f64::from(step / 20)]).collect();
        points.push([5000.0, 0.0]);
        let frame = Frame::around(&points, [1000.0, 620.0], 34.0);
        let (held, inside) = frame.place([5000.0, 0.0]);
        assert!(!inside && (held[0] - 988.0).abs() < 1e-9);
        assert!(frame.place([10.0, 5.0]).1);
        let (middle, _) = Frame::around(&[], [1000.0, 620.0], 34.0).place([0.0, 0.0]);
        assert_eq!(middle, [500.0, 310.0]);
    }
}
