//! Lays out the agents of the refined map in a given number of dimensions, from several initial
//! arrangements, and moves the agents to better places by the Gauss–Newton method.
//!
//! Like the plain fit, the method moves one agent at a time while all others are fixed. Unlike the
//! plain fit, the method uses damped Gauss–Newton steps with analytic derivatives instead of the
//! simplex, because these steps find the same optimum with much less work.

use nalgebra::{DMatrix, DVector};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::gnp::RefinedSwitches;
use crate::gnp::measured_distances::{Measured, classical_scaling};
use crate::gnp::objective::{HUBER, huber_within, log_error};

/// The height of all agents at the start, as a share of the median measured distance.
const HEIGHT: f64 = 0.02;
/// Maximum random shift of each component in the second start, as a share of the median measured
/// distance.
const DISTURBANCE: f64 = 0.2;

/// The map has one layout for each of these numbers of dimensions, and averages the layouts'
/// predictions. The numbers are low enough for nine measurements to determine a point, and high
/// enough to describe distances on the Internet.
pub(super) const DIMENSIONS: [usize; 3] = [3, 4, 5];
/// The number of dimensions of the only layout if averaging is switched off.
pub(super) const SINGLE_DIMENSION: [usize; 1] = [4];
/// Milliseconds added to a distance before its logarithm is taken, as a share of the median
/// measured distance. Without this softening, a few milliseconds of noise would change the
/// logarithm of a short round trip too much.
pub(super) const SOFTENING: f64 = 0.02;

#[derive(Debug, Clone, Copy)]
pub(super) struct LaidOut<'a> {
    pub(super) measured: &'a Measured,
    pub(super) layout: &'a Layout,
    /// The softening of log errors, in milliseconds.
    pub(super) softening: f64,
    pub(super) seed: u64,
}

/// Agents placed in a given number of dimensions.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Layout {
    /// Number of dimensions, without the height.
    pub(super) dimensions: usize,
    /// For each agent, one component per dimension, then the height; in milliseconds.
    pub(super) points: Vec<Vec<f64>>,
}

impl Layout {
    /// Places all agents of `measured`; `softening` is in milliseconds.
    pub(super) fn fit(
        measured: &Measured,
        dimensions: usize,
        ingredients: &RefinedSwitches,
        softening: f64,
        seed: u64,
    ) -> Self {
        let huber = if ingredients.robust { HUBER } else { f64::INFINITY };
        let height = if ingredients.height { HEIGHT * measured.scale() } else { 0.0 };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let scale = measured.scale();
        let mut start = classical_scaling(&measured.filled, dimensions);
        for point in &mut start {
            point.push(height);
        }
        let mut other = start.clone();
        for component in other.iter_mut().flatten() {
            *component += rng.random_range(-1.0..1.0) * DISTURBANCE * scale;
        }
        for point in &mut other {
            if let Some(last) = point.last_mut() {
                *last = height;
            }
        }
        let problem = LayoutProblem { measured, softening, huber, heights: ingredients.height };
        let (points, _) = [start, other]
            .into_iter()
            .map(|start| problem.descend(start))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .expect("there are two starts");
        Self { dimensions, points }
    }
}

/// Maximum number of sweeps with squared errors; a sweep moves every agent once. These sweeps come
/// first, because the robust loss can recognise unusual pairs only near an optimum.
const SQUARE_SWEEPS: usize = 60;
/// Maximum number of sweeps with the robust loss.
const ROBUST_SWEEPS: usize = 400;
/// Sweeping ends when a sweep lowers the cost by less than this share.
const CONVERGED: f64 = 1e-5;
/// The damping of the first step and the bounds of the damping, as shares of the diagonal of the
/// normal equations' matrix.
const FIRST_DAMPING: f64 = 1e-3;
const LEAST_DAMPING: f64 = 1e-6;
const MOST_DAMPING: f64 = 1e3;
/// Maximum number of steps tried per agent and sweep. Each step has five times the damping of the
/// failed step before it.
const STEP_TRIES: usize = 6;
/// Lower bound, in milliseconds, of the distance by which a difference between two places is
/// divided. The bound avoids a division by zero.
const NO_DISTANCE: f64 = 1e-9;

struct LayoutProblem<'a> {
    measured: &'a Measured,
    /// The softening of log errors, in milliseconds.
    softening: f64,
    /// The limit of Huber's loss in the sweeps after [`SQUARE_SWEEPS`].
    huber: f64,
    heights: bool,
}

impl LayoutProblem<'_> {
    fn descend(&self, mut points: Vec<Vec<f64>>) -> (Vec<Vec<f64>>, f64) {
        let mut damping = vec![FIRST_DAMPING; points.len()];
        for (huber, sweeps) in [(f64::INFINITY, SQUARE_SWEEPS), (self.huber, ROBUST_SWEEPS)] {
            let mut before = f64::INFINITY;
            for _ in 0..sweeps {
                let cost: f64 = (0..points.len()).map(|i| self.improve(i, &mut points, huber, &mut damping[i])).sum();
                if before - cost < CONVERGED * cost {
                    break;
                }
                before = cost;
            }
        }
        let cost = (0..points.len()).map(|i| self.cost(i, &points[i], &points, self.huber)).sum();
        (points, cost)
    }

    fn cost(&self, agent: usize, at: &[f64], points: &[Vec<f64>], huber: f64) -> f64 {
        let loss =
            |&(j, distance): &(usize, f64)| huber_within(self.log_error(reach(at, &points[j]).0, distance), huber);
        self.measured.rows[agent].iter().map(loss).sum()
    }

    fn log_error(&self, computed: f64, distance: f64) -> f64 {
        log_error(computed, distance, self.softening)
    }

    /// Moves one agent by one damped step (Levenberg 1944, Marquardt 1963) on Huber's loss. Returns
    /// the agent's cost after the step.
    fn improve(&self, agent: usize, points: &mut [Vec<f64>], huber: f64, damping: &mut f64) -> f64 {
        let (normal, gradient) = self.linearise(agent, points, huber);
        let cost = self.cost(agent, &points[agent], points, huber);
        for _ in 0..STEP_TRIES {
            let mut damped = normal.clone();
            for a in 0..damped.nrows() {
                damped[(a, a)] += *damping * normal[(a, a)].max(f64::MIN_POSITIVE.sqrt());
            }
            if let Some(factor) = damped.cholesky() {
                let step = factor.solve(&gradient);
                let mut moved = points[agent].clone();
                for (component, step) in moved.iter_mut().zip(step.iter()) {
                    *component -= step;
                }
                if let Some(height) = moved.last_mut() {
                    *height = height.max(0.0);
                }
                let after = self.cost(agent, &moved, points, huber);
                if after < cost {
                    points[agent] = moved;
                    *damping = (*damping * 0.3).max(LEAST_DAMPING);
                    return after;
                }
            }
            *damping = (*damping * 5.0).min(MOST_DAMPING);
        }
        cost
    }

    /// The normal equations (matrix and gradient) of one agent's log errors. Weighting the squares
    /// of the errors anew at each step gives Huber's loss (iteratively reweighted least squares).
    fn linearise(&self, agent: usize, points: &[Vec<f64>], huber: f64) -> (DMatrix<f64>, DVector<f64>) {
        let at = &points[agent];
        let dimensions = at.len() - 1;
        let free = if self.heights { dimensions + 1 } else { dimensions };
        let mut normal = DMatrix::zeros(free, free);
        let mut gradient = DVector::zeros(free);
        for &(j, distance) in &self.measured.rows[agent] {
            let (computed, straight) = reach(at, &points[j]);
            let error = self.log_error(computed, distance);
            let weight = if error.abs() <= huber { 1.0 } else { huber / error.abs() };
            let share = 1.0 / (computed + self.softening);
            let slope = DVector::from_fn(free, |axis, _| {
                if axis == dimensions {
                    share
                } else {
                    share * (at[axis] - points[j][axis]) / straight.max(NO_DISTANCE)
                }
            });
            gradient.axpy(weight * error, &slope, 1.0);
            normal.ger(weight, &slope, &slope, 1.0);
        }
        (normal, gradient)
    }
}

/// The computed distance between two points, and its straight-line part; in milliseconds.
pub(super) fn reach(a: &[f64], b: &[f64]) -> (f64, f64) {
    let last = a.len() - 1;
    let square: f64 = a[..last].iter().zip(&b[..last]).map(|(p, q)| (p - q) * (p - q)).sum();
    let straight = square.sqrt();
    (straight + a[last] + b[last], straight)
}
