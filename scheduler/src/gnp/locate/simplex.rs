//! The downhill simplex (Nelder and Mead, "A simplex method for function minimization", 1965),
//! implemented by argmin.

use std::marker::PhantomData;

use argmin::core::{CostFunction, Executor};
use argmin::solver::neldermead::NelderMead;
use nalgebra::allocator::Allocator;
use nalgebra::{DVector, DefaultAllocator, Dim, OVector, SVector};

use crate::gnp::objective::{WORST, finite};

#[derive(Debug, Clone, Copy)]
pub(in crate::gnp) struct StopRule {
    /// Maximum number of steps.
    pub(in crate::gnp) steps: u64,
    /// A run has converged if the standard deviation of the cost over the simplex's corners is
    /// below this share of the cost at the start.
    pub(in crate::gnp) tolerance: f64,
}

#[derive(Debug, Clone)]
pub(in crate::gnp) struct Minimum {
    /// The best point found; its cost never exceeds the cost at the start.
    pub(in crate::gnp) point: Vec<f64>,
}

/// The solver failed, which should not happen with a finite cost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("minimise by the simplex: {0}")]
pub struct SimplexError(String);

type PointAndCost<D> = (OVector<f64, D>, f64);

/// The function to minimise, over points of `D` components.
struct Problem<F, D>(F, PhantomData<D>);

impl<F: Fn(&[f64]) -> f64, D: Dim> CostFunction for Problem<F, D>
where
    DefaultAllocator: Allocator<D>,
{
    type Param = OVector<f64, D>;
    type Output = f64;

    fn cost(&self, point: &Self::Param) -> Result<f64, argmin::core::Error> {
        // The cost must be finite, because argmin panics if its first step meets a NaN, and reports
        // a later NaN as an error.
        Ok(finite((self.0)(point.as_slice())))
    }
}

/// Minimises `cost` from `start`. The corners of the first simplex are `start` and, for each axis,
/// the point `start` shifted by `step` along this axis.
pub(in crate::gnp) fn minimise(
    cost: impl Fn(&[f64]) -> f64,
    start: &[f64],
    step: f64,
    stop: StopRule,
) -> Result<Minimum, SimplexError> {
    let start_cost = finite(cost(start));
    let origin = DVector::from_column_slice(start);
    let found = run(&cost, &origin, 0..start.len(), step, start_cost, stop)?;
    Ok(match found {
        Some((point, _)) => Minimum { point: point.as_slice().to_vec() },
        None => Minimum { point: start.to_vec() },
    })
}

/// Does the same as [`minimise`], for points on the stack whose length is known at compile time.
/// Moves only along `axes`. The returned cost never exceeds the cost of `start`.
pub(in crate::gnp) fn minimise_fixed<const N: usize>(
    cost: impl Fn(&[f64; N]) -> f64,
    start: &[f64; N],
    axes: impl Iterator<Item = usize>,
    step: f64,
    stop: StopRule,
) -> Result<([f64; N], f64), SimplexError> {
    let start_cost = finite(cost(start));
    let slice = |point: &[f64]| point.first_chunk().map_or(WORST, &cost);
    let found = run(slice, &SVector::from(*start), axes, step, start_cost, stop)?;
    Ok(found.map_or((*start, start_cost), |(point, cost)| (point.into(), cost)))
}

/// Returns the best point that argmin finds and its cost; `None` if it is not better than `start`.
fn run<D: Dim>(
    cost: impl Fn(&[f64]) -> f64,
    start: &OVector<f64, D>,
    axes: impl Iterator<Item = usize>,
    step: f64,
    start_cost: f64,
    stop: StopRule,
) -> Result<Option<PointAndCost<D>>, SimplexError>
where
    DefaultAllocator: Allocator<D>,
{
    let mut corners = vec![start.clone()];
    corners.extend(axes.map(|axis| {
        let mut corner = start.clone();
        corner[axis] += step;
        corner
    }));
    let failed = |error: argmin::core::Error| SimplexError(error.to_string());
    let solver = NelderMead::new(corners).with_sd_tolerance(start_cost * stop.tolerance).map_err(failed)?;
    let executor = Executor::new(Problem(cost, PhantomData), solver).configure(|state| state.max_iters(stop.steps));
    // argmin's timer is off, because reading the clock at each step takes as long as the step.
    let state = executor.timer(false).run().map_err(failed)?.state;
    Ok(state.best_param.filter(|_| state.best_cost < start_cost).map(|point| (point, state.best_cost)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOP: StopRule = StopRule { steps: 2_000, tolerance: 1e-12 };

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
