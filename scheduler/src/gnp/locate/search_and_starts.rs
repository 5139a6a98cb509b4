//! Searches for a host's place by one of two methods: the downhill simplex, or the method of
//! Levenberg and Marquardt, which is used to locate many hosts at once. Chooses at which points,
//! and at how many, the search starts.
//!
//! The simplex (Nelder and Mead, "A simplex method for function minimization", 1965) is implemented
//! by argmin.
//!
//! The second method: Levenberg, "A method for the solution of certain non-linear problems in least
//! squares", 1944; Marquardt, "An algorithm for least-squares estimation of nonlinear parameters",
//! 1963.
//!
//! Each step goes to the minimum of the quadratic model [`Host::model`], after the diagonal of the
//! model's curvature has been multiplied by 1 plus the damping. The damping falls after a
//! successful step and rises after a failed step. A step that would make the height negative sets
//! the height to zero. If the height is zero and its gradient is positive, the step does not change
//! the height.

use std::convert::Infallible;
use std::marker::PhantomData;

use argmin::core::{CostFunction, Executor};
use argmin::solver::neldermead::NelderMead;
use nalgebra::allocator::Allocator;
use nalgebra::{DVector, DefaultAllocator, Dim, OVector, SVector};

use crate::gnp::objective::{HUBER, WORST, finite};

use super::host_cost::{Block, Host, LANES, Model, Point, squares};

/// The method that finds a host's place. All methods minimise the same cost from the same starts,
/// and predict equally well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Solver {
    /// Nelder and Mead's simplex: the default, and the method of Ng and Zhang.
    Simplex,
    /// Levenberg and Marquardt's method with analytic derivatives. This method is about ten times
    /// as fast as the simplex, and is used to locate many hosts at once.
    LevenbergMarquardt,
}

/// The step length of the first simplex, as a share of the embedding's scale (the median distance
/// between agents).
const STEP: f64 = 0.1;
const STOP: StopRule = StopRule { steps: 400, tolerance: 6e-4 };

impl Solver {
    /// Returns the place with the lowest cost that the method finds.
    pub(super) fn place<const N: usize>(self, host: &Host<'_, N>) -> Result<Point<N>, SimplexError> {
        let (point, _) = match self {
            Self::Simplex => by_simplex(host)?,
            Self::LevenbergMarquardt => in_bulk(host),
        };
        Ok(point)
    }
}

fn by_simplex<const N: usize>(host: &Host<'_, N>) -> Result<(Point<N>, f64), SimplexError> {
    let axes = || (0..host.anchorage.dimensions).chain([N - 1]);
    let step = STEP * host.anchorage.scale;
    best_of(host, |start| minimise_fixed(|point| host.cost(point), start, axes(), step, STOP))
}

fn in_bulk<const N: usize>(host: &Host<'_, N>) -> (Point<N>, f64) {
    let descend = |start: &Point<N>| Ok::<_, Infallible>(descend_by_levenberg_marquardt(host, start));
    match best_of(host, descend) {
        Ok(best) => best,
    }
}

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
fn minimise_fixed<const N: usize>(
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

/// Maximum number of steps, successful or not.
const MOST_STEPS: usize = 40;
/// The search ends after a step that lowers the cost by less than this share.
const CONVERGED: f64 = 1e-3;
/// The damping of the first step, as a share of the curvature's diagonal.
const DAMPING: f64 = 1e-3;
/// The factors by which the damping is multiplied after a successful and after a failed step.
const LOOSEN: f64 = 0.2;
const TIGHTEN: f64 = 4.0;
/// The search ends above this damping, because then no step can be expected to succeed.
const MOST_DAMPING: f64 = 1e6;

/// Returns the local minimum reached from `start` and its cost, which never exceeds the cost of
/// `start`.
fn descend_by_levenberg_marquardt<const N: usize>(host: &Host<'_, N>, start: &Point<N>) -> (Point<N>, f64) {
    let mut point = *start;
    let mut view = host.view();
    let mut cost = host.examine(&point, &mut view);
    let mut model = Model::default();
    host.model(&point, &view, &mut model);
    let mut damping = DAMPING;
    for _ in 0..MOST_STEPS {
        let pinned = point[N - 1] <= 0.0 && model.gradient[N - 1] > 0.0;
        let step = solve(&model, damping, pinned);
        let mut next = point;
        for (component, change) in next.iter_mut().zip(step) {
            *component -= change;
        }
        next[N - 1] = next[N - 1].max(0.0);
        let lower = host.examine(&next, &mut view);
        if lower < cost {
            let gain = cost - lower;
            point = next;
            cost = lower;
            damping *= LOOSEN;
            if gain < CONVERGED * lower {
                break;
            }
            host.model(&point, &view, &mut model);
        } else {
            damping *= TIGHTEN;
            if damping > MOST_DAMPING {
                break;
            }
        }
    }
    (point, cost)
}

/// Solves `(C + damping diag(C)) step = gradient`, where `C` is the curvature, by the root-free
/// Cholesky decomposition `L D L'`. If `pinned` is true, the height does not change.
///
/// A component without curvature does not move. The components that pad the point beyond the
/// embedding's dimensions have no curvature.
fn solve<const N: usize>(model: &Model<N>, damping: f64, pinned: bool) -> [f64; N] {
    let mut lower = model.curvature;
    let mut step = model.gradient;
    if pinned {
        for row in &mut lower {
            row[N - 1] = 0.0;
        }
        lower[N - 1] = [0.0; N];
        step[N - 1] = 0.0;
    }
    let mut inverse = [0.0; N];
    for column in 0..N {
        let mut pivot = lower[column][column] * (1.0 + damping);
        for k in 0..column {
            pivot -= lower[column][k] * lower[column][k] * inverse[k];
        }
        let usable = pivot > f64::MIN_POSITIVE;
        inverse[column] = if usable { 1.0 / pivot } else { 0.0 };
        for row in column + 1..N {
            let mut entry = lower[row][column];
            for k in 0..column {
                entry -= lower[row][k] * lower[column][k] * inverse[k];
            }
            lower[row][column] = if usable { entry } else { 0.0 };
        }
    }
    // Below the diagonal, `lower` now contains the product `L D`.
    for row in 0..N {
        for k in 0..row {
            step[row] -= lower[row][k] * inverse[k] * step[k];
        }
    }
    for row in (0..N).rev() {
        step[row] *= inverse[row];
        for k in row + 1..N {
            step[row] -= lower[k][row] * inverse[row] * step[k];
        }
    }
    step
}

/// Maximum number of agents at whose points the search starts.
const STARTS: usize = 3;
/// Maximum number of starts in a map that explains its own measurements well. If a host's error is
/// nevertheless large, the search failed, not the map, so more starts are tried.
const EXACT_STARTS: usize = 8;
/// The cost per measurement, in squared log errors, at or above which another start is tried. An
/// error of about 20 % has this cost.
pub(super) const RESTART: f64 = 0.03;
/// In a map with a small fit error, another start is tried if the host's error reaches this
/// multiple of the fit error. In such a map, an error that would be usual in other maps is a sign
/// of a failed search.
const RESTART_FIT_ERRORS: f64 = 3.0;
/// Lower bound of the threshold computed from [`RESTART_FIT_ERRORS`]: the cost of an error of 5 %.
/// An error of 5 % does not change the choice of an agent.
const LEAST_RESTART: f64 = 0.0025;

/// The cost per measurement, in squared log errors, at or above which another start is tried in a
/// map with this fit error.
pub(super) fn restart_cost(fit_error: f64) -> f64 {
    (RESTART_FIT_ERRORS * fit_error).powi(2).clamp(LEAST_RESTART, RESTART)
}

/// Solves from the likeliest start, then from further starts until the result explains the
/// measurements well.
fn best_of<const N: usize, E>(
    host: &Host<'_, N>,
    solve: impl Fn(&Point<N>) -> Result<(Point<N>, f64), E>,
) -> Result<(Point<N>, f64), E> {
    let [first, others @ ..] = host.starts::<STARTS>();
    let mut best = solve(&first)?;
    let enough = host.anchorage.restart * host.anchors();
    let lower = |best: &mut (Point<N>, f64), starts: &[Point<N>]| -> Result<(), E> {
        for start in starts {
            if best.1 < enough {
                break;
            }
            let found = solve(start)?;
            if found.1 < best.1 {
                *best = found;
            }
        }
        Ok(())
    };
    lower(&mut best, &others)?;
    // Ranking `EXACT_STARTS` starts is expensive, so it is done only if the first starts fail.
    if best.1 >= enough && host.anchorage.restart < RESTART {
        lower(&mut best, &host.starts::<EXACT_STARTS>()[STARTS..])?;
    }
    Ok(best)
}

impl<const N: usize> Host<'_, N> {
    /// The points of the `K` agents that explain the measurements best, with new heights, the best
    /// first. If there are fewer than `K` agents, the best start fills the other entries.
    fn starts<const K: usize>(&self) -> [Point<N>; K] {
        let mut best = [(f64::INFINITY, 0); K];
        let mut lines = vec![[0.0; LANES]; self.measured.len()];
        for (index, block) in self.anchorage.blocks.iter().enumerate() {
            for (lane, misfit) in self.misfits(block, &mut lines).into_iter().enumerate() {
                if misfit < best[K - 1].0 {
                    best[K - 1] = (misfit, index * LANES + lane);
                    for place in (1..K).rev() {
                        if best[place].0 < best[place - 1].0 {
                            best.swap(place, place - 1);
                        }
                    }
                }
            }
        }
        best.map(|found| self.beside(if found.0.is_finite() { found.1 } else { best[0].1 }))
    }

    /// How badly the points of four agents explain the measurements. Each point gets a height of at
    /// least 0: the mean, over the measurements, of the height at which the computed distance
    /// equals the measured distance. `lines` is a buffer for distances.
    ///
    /// The log error is approximated by the first term of its series in `(g - d) / (g + d)`, which
    /// is precise enough for ranking. `g` is the computed and `d` the measured distance, each plus
    /// the softening.
    fn misfits(&self, agents: &Block<N>, lines: &mut [[f64; LANES]]) -> [f64; LANES] {
        let mut heights = [0.0; LANES];
        for (&(anchor, measured), lines) in self.measured.iter().zip(lines.iter_mut()) {
            let anchor = &self.anchorage.agents[anchor];
            *lines = squares(anchor, agents);
            for lane in 0..LANES {
                lines[lane] = lines[lane].sqrt() + anchor[N - 1];
                heights[lane] += measured - lines[lane];
            }
        }
        let share = 1.0 / self.anchors();
        for height in &mut heights {
            *height = if *height > 0.0 { *height * share } else { 0.0 };
        }
        let mut misfits = [0.0; LANES];
        for (&(_, measured), lines) in self.measured.iter().zip(lines.iter()) {
            for lane in 0..LANES {
                let computed = lines[lane] + heights[lane];
                let size = (2.0 * (computed - measured) / (computed + measured + 2.0 * self.anchorage.softening)).abs();
                let near = if size < HUBER { size } else { HUBER };
                misfits[lane] += near * near + 2.0 * HUBER * (size - near);
            }
        }
        misfits
    }

    /// A start at an agent's point. The height is the median, over the measurements, of the height
    /// at which the computed distance equals the measured distance, or 0 if the median is negative.
    fn beside(&self, agent: usize) -> Point<N> {
        let mut point = self.anchorage.agents[agent];
        let mut left: Vec<f64> = Vec::with_capacity(self.measured.len());
        for anchors in &self.anchors {
            let squares = squares(&point, &anchors.at);
            left.extend((0..anchors.count).map(|i| anchors.measured[i] - squares[i].sqrt() - anchors.at[N - 1][i]));
        }
        left.sort_unstable_by(f64::total_cmp);
        point[N - 1] = left.get(left.len() / 2).map_or(0.0, |height| height.max(0.0));
        point
    }
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
