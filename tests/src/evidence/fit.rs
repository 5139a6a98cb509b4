//! The least-squares line through points. This module does no I/O.

use crate::evidence::float;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LineFit {
    pub slope: f64,
    pub intercept: f64,
    /// The coefficient of determination, 0 to 1; 1 if all points have the same y.
    pub r_squared: f64,
    /// The standard error of the slope; `None` with fewer than three points.
    pub slope_error: Option<f64>,
}

impl LineFit {
    /// Fits a line; `None` unless two points differ in x.
    pub fn of(points: &[(f64, f64)]) -> Option<Self> {
        let count = float(points.len().max(1));
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let square: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
        let product: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
        if square <= 0.0 {
            return None;
        }
        let slope = product / square;
        let intercept = y - slope * x;
        let residual: f64 = points.iter().map(|point| (point.1 - intercept - slope * point.0).powi(2)).sum();
        let total: f64 = points.iter().map(|point| (point.1 - y).powi(2)).sum();
        let r_squared = if total > 0.0 { 1.0 - residual / total } else { 1.0 };
        let slope_error = (points.len() > 2).then(|| (residual / (count - 2.0) / square).sqrt());
        Some(Self { slope, intercept, r_squared, slope_error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_with_the_error_of_its_slope() {
        let exact = LineFit::of(&[(1.0, 3.0), (2.0, 5.0), (4.0, 9.0)]).unwrap();
        assert!((exact.slope - 2.0).abs() < 1e-12 && (exact.intercept - 1.0).abs() < 1e-12, "{exact:?}");
        assert!((exact.r_squared - 1.0).abs() < 1e-12 && exact.slope_error.unwrap() < 1e-9, "{exact:?}");
        // The residuals around y = x + 2/3 are 1/3, -2/3 and 1/3. Their squares sum to 2/3, and the
        // squared deviations of x from its mean sum to 2.
        let noisy = LineFit::of(&[(0.0, 1.0), (1.0, 1.0), (2.0, 3.0)]).unwrap();
        assert!((noisy.slope - 1.0).abs() < 1e-12 && (noisy.r_squared - 0.75).abs() < 1e-12, "{noisy:?}");
        assert!((noisy.slope_error.unwrap() - (1.0_f64 / 3.0).sqrt()).abs() < 1e-12, "{noisy:?}");
        assert_eq!(LineFit::of(&[(1.0, 5.0), (1.0, 6.0)]), None);
        assert_eq!(LineFit::of(&[(1.0, 5.0), (2.0, 6.0)]).unwrap().slope_error, None);
    }
}
