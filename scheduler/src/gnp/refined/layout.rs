//! Lays out the agents of the refined map in a given number of dimensions, from several initial
//! arrangements, of which the best result is kept.

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::gnp::RefinedSwitches;
use crate::gnp::fit::{Measured, mds};
use crate::gnp::objective::HUBER;

use super::gauss_newton::LayoutProblem;

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
        let mut start = mds::classical(&measured.filled, dimensions);
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
