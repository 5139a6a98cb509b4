//! The downhill simplex (Nelder and Mead, "A simplex method for function minimization", 1965), by argmin.

use argmin::core::{CostFunction, Executor};
use argmin::solver::neldermead::NelderMead;
use nalgebra::DVector;

use super::objective::finite;

/// When a run of the simplex ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    /// Steps at most.
    pub(super) steps: u64,
    /// Converged when the standard deviation of the cost over the simplex is below this part of the start's cost.
    pub(super) tolerance: f64,
}

/// Where a run ended.
#[derive(Debug, Clone)]
pub(super) struct Minimum {
    /// The best point.
    pub(super) point: Vec<f64>,
    /// Its cost; never above the start's.
    pub(super) cost: f64,
}

/// The solver gave up, which a finite cost should never let it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("minimise by the simplex: {0}")]
pub struct SimplexError(String);

struct Problem<F>(F);

impl<F: Fn(&[f64]) -> f64> CostFunction for Problem<F> {
    type Param = DVector<f64>;
    type Output = f64;

    fn cost(&self, point: &Self::Param) -> Result<f64, argmin::core::Error> {
        // argmin panics on a failed cost in its first step and fails on a NaN later, so a cost is always a number.
        Ok(finite((self.0)(point.as_slice())))
    }
}

/// Minimises `cost` from `start`; the first simplex is `start` and one step of `step` along each axis.
///
/// # Errors
/// When argmin fails, which the total cost rules out unless it has a bug.
pub(super) fn minimise(
    cost: impl Fn(&[f64]) -> f64,
    start: &[f64],
    step: f64,
    stop: Stop,
) -> Result<Minimum, SimplexError> {
    let origin = DVector::from_column_slice(start);
    let start_cost = finite(cost(start));
    let mut corners = vec![origin.clone()];
    for axis in 0..start.len() {
        let mut corner = origin.clone();
        corner[axis] += step;
        corners.push(corner);
    }
    let failed = |error: argmin::core::Error| SimplexError(error.to_string());
    let solver = NelderMead::new(corners).with_sd_tolerance(start_cost * stop.tolerance).map_err(failed)?;
    let executor = Executor::new(Problem(cost), solver).configure(|state| state.max_iters(stop.steps));
    let state = executor.run().map_err(failed)?.state;
    match state.best_param {
        Some(point) if state.best_cost < start_cost => {
            Ok(Minimum { point: point.as_slice().to_vec(), cost: state.best_cost })
        }
        _ => Ok(Minimum { point: start.to_vec(), cost: start_cost }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOP: Stop = Stop { steps: 2_000, tolerance: 1e-12 };

    #[test]
    fn the_simplex_finds_the_bottom_of_a_bowl_the_same_way_twice() {
        let bowl = |p: &[f64]| (p[0] - 3.0).powi(2) + 2.0 * (p[1] + 1.0).powi(2);
        let found = minimise(bowl, &[0.0, 0.0], 1.0, STOP).unwrap();
        assert!((found.point[0] - 3.0).abs() < 1e-3 && (found.point[1] + 1.0).abs() < 1e-3, "{found:?}");
        assert_eq!(found.point, minimise(bowl, &[0.0, 0.0], 1.0, STOP).unwrap().point);
    }

    #[test]
    fn a_cost_that_is_never_a_number_leaves_the_start() {
        let found = minimise(|_| f64::NAN, &[1.0, 2.0], 1.0, STOP).unwrap();
        assert_eq!(found.point, [1.0, 2.0]);
    }
}
