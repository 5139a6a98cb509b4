//! Kriging: predicts the map's errors for pairs of hosts from its errors for pairs of nearby
//! agents.
//!
//! The log residual of a measured pair is `y(i,k) = ln(d + s) - ln(g + s)`, where `d` is the
//! measured distance, `g` the computed distance and `s` the softening. The residuals are modelled
//! as a Gaussian process over *pairs* of places. [`Constants`] explains `c`, `l`, `v` and `n`.
//!
//! - The similarity of two places is `K(i,j) = c exp(-|x_i - x_j| / l)`, with `K(i,i) = 1`.
//! - The covariance of the residuals of the pairs (i,k) and (j,m) is `v (K_ij K_km + K_im K_kj)`.
//!   The covariance has two terms, because a pair has no direction.
//! - The part of a residual that places do not explain has the variance `n max(1, |y| / 0.25)`.
//!   This variance grows with the residual, because a large residual is probably an outlier.
//!
//! Sources: Krige 1951; Rasmussen and Williams, "Gaussian processes for machine learning", 2006,
//! section 2.2. Wong, Slivkins and Sirer also correct distances by residuals, but keep one
//! correction per node, not per pair.

use nalgebra::{Cholesky, DMatrix, DVector};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use crate::gnp::objective::log_error;

use super::layout::LaidOut;
use super::layout::reach;

/// A residual larger than this is treated as an outlier: the noise assumed for it grows with
/// its size.
const ODD: f64 = 0.25;
/// Maximum number of pairs used, because the work grows with the cube of their number. If there are
/// more pairs, this many are drawn at random.
const MOST_PAIRS: usize = 1_000;

/// The constants of the covariance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Constants {
    /// `v`: the part of a log residual's variance that the places of the two hosts explain.
    pub(super) variance: f64,
    /// `c`: the correlation of two different hosts at the same place.
    pub(super) likeness: f64,
    /// `l`: the distance at which the correlation has fallen to 1/e, as a share of the scale.
    pub(super) length: f64,
    /// `n`: the variance that places do not explain.
    pub(super) noise: f64,
}

/// Sets of constants to choose from. There are several sets, because networks differ in how far
/// similarity reaches and in how much of a residual is noise.
pub(super) const CONSTANTS: [Constants; 5] = [
    Constants { variance: 0.05, likeness: 0.9, length: 0.3, noise: 0.02 },
    Constants { variance: 0.02, likeness: 0.9, length: 0.45, noise: 0.005 },
    Constants { variance: 0.05, likeness: 0.95, length: 0.3, noise: 0.003 },
    Constants { variance: 0.02, likeness: 0.9, length: 0.75, noise: 0.015 },
    Constants { variance: 0.1, likeness: 0.97, length: 0.22, noise: 0.0015 },
];

/// The Gaussian process fitted to one layout's residuals.
#[derive(Debug, Clone)]
pub(super) struct Kriging {
    constants: Constants,
    /// `l` in milliseconds.
    length: f64,
    /// The agents' places, to compute the kernel of a new place.
    points: Vec<Vec<f64>>,
    /// `K`: the kernel between agents.
    kernel: DMatrix<f64>,
    /// `v A K`, where `A` is the symmetric matrix of the pairs' values in `solved`. The correction
    /// of a place's log distance to an agent is the place's kernel row times the agent's column of
    /// this matrix.
    weights: DMatrix<f64>,
    pairs: Vec<(usize, usize)>,
    /// The inverse of the pairs' covariance matrix.
    inverse: DMatrix<f64>,
    /// The inverse covariance matrix times the residuals, one value per pair.
    solved: DVector<f64>,
}

impl Kriging {
    /// Fits the process with these constants; `None` if the covariance matrix is not positive
    /// definite. Because of the noise on its diagonal, the matrix is positive definite unless a
    /// value overflows.
    pub(super) fn fit(mesh: &LaidOut<'_>, constants: Constants) -> Option<Self> {
        let length = constants.length * mesh.measured.scale();
        let count = mesh.measured.agents.len();
        let points = &mesh.layout.points;
        let kernel = DMatrix::from_fn(count, count, |i, j| {
            if i == j { 1.0 } else { likeness(&constants, length, reach(&points[i], &points[j]).1) }
        });
        let (pairs, residuals) = residuals(mesh);
        let v = constants.variance;
        let mut covariance = DMatrix::from_fn(pairs.len(), pairs.len(), |a, b| {
            let ((i, k), (j, l)) = (pairs[a], pairs[b]);
            v * (kernel[(i, j)] * kernel[(k, l)] + kernel[(i, l)] * kernel[(k, j)])
        });
        for (a, residual) in residuals.iter().enumerate() {
            covariance[(a, a)] += constants.noise * (residual.abs() / ODD).max(1.0);
        }
        let inverse = Cholesky::new(covariance)?.inverse();
        let solved = &inverse * DVector::from_vec(residuals);
        let weights = spread(&pairs, solved.as_slice(), count) * &kernel * v;
        Some(Self { constants, length, points: points.clone(), kernel, weights, pairs, inverse, solved })
    }

    /// The kernel `K` between a place and every agent.
    pub(super) fn near(&self, at: &[f64]) -> Vec<f64> {
        self.points.iter().map(|point| likeness(&self.constants, self.length, reach(at, point).1)).collect()
    }

    /// The weights that correct log distances. The correction of a place's log distance to agent j
    /// is a sum over the agents i: the weight in row i and column j, times the kernel between the
    /// place and agent i.
    pub(super) const fn weights(&self) -> &DMatrix<f64> {
        &self.weights
    }

    /// Returns the weights as if no pair of `agent` had been measured. The formula for the inverse
    /// of a block matrix makes it unnecessary to fit the process again.
    pub(super) fn weights_without(&self, agent: usize) -> DMatrix<f64> {
        let (mut block, mut rest) = (Vec::new(), Vec::new());
        for (p, &(i, j)) in self.pairs.iter().enumerate() {
            if i == agent || j == agent { block.push(p) } else { rest.push(p) }
        }
        let size = block.len();
        let part = DMatrix::from_fn(size, size, |a, b| self.inverse[(block[a], block[b])]);
        let left = DVector::from_fn(size, |a, _| self.solved[block[a]]);
        let mut solved = self.solved.clone();
        for &p in &block {
            solved[p] = 0.0;
        }
        if let Some(factor) = Cholesky::new(part) {
            let error = factor.solve(&left);
            for &p in &rest {
                solved[p] -= block.iter().zip(error.iter()).map(|(&b, e)| self.inverse[(p, b)] * e).sum::<f64>();
            }
        }
        spread(&self.pairs, solved.as_slice(), self.kernel.nrows()) * &self.kernel * self.constants.variance
    }

    /// The factors with which one site's residuals at the agents `from` correct the site's log
    /// distance to every agent: one row per agent. The covariance of a site's residuals at two
    /// agents is `v K` of the two agents; [`SITE_NOISE`] is added to each variance.
    pub(super) fn gains(&self, from: &[usize]) -> Vec<Vec<f64>> {
        let v = self.constants.variance;
        let mut covariance = DMatrix::from_fn(from.len(), from.len(), |a, b| v * self.kernel[(from[a], from[b])]);
        for a in 0..from.len() {
            covariance[(a, a)] += SITE_NOISE;
        }
        let Some(factor) = Cholesky::new(covariance) else { return Vec::new() };
        let gain = |agent: usize| {
            let row = DVector::from_fn(from.len(), |a, _| v * self.kernel[(agent, from[a])]);
            factor.solve(&row).iter().copied().collect()
        };
        (0..self.kernel.nrows()).map(gain).collect()
    }
}

/// The noise variance of one measurement of a site. For sites, this variance replaces the constant
/// `n`, which is chosen for pairs of agents with known places.
const SITE_NOISE: f64 = 0.005;

fn likeness(constants: &Constants, length: f64, straight: f64) -> f64 {
    constants.likeness * (-straight / length).exp()
}

/// The measured pairs, and the log residual of each.
fn residuals(mesh: &LaidOut<'_>) -> (Vec<(usize, usize)>, Vec<f64>) {
    let mut pairs: Vec<(usize, usize, f64)> = Vec::new();
    for (i, row) in mesh.measured.rows.iter().enumerate() {
        pairs.extend(row.iter().filter(|&&(j, _)| j > i).map(|&(j, distance)| (i, j, distance)));
    }
    if pairs.len() > MOST_PAIRS {
        pairs.shuffle(&mut ChaCha8Rng::seed_from_u64(mesh.seed));
        pairs.truncate(MOST_PAIRS);
        pairs.sort_by_key(|&(i, j, _)| (i, j));
    }
    let residual = |&(i, j, distance): &(usize, usize, f64)| {
        let (computed, _) = reach(&mesh.layout.points[i], &mesh.layout.points[j]);
        log_error(distance, computed, mesh.softening)
    };
    let residuals = pairs.iter().map(residual).collect();
    (pairs.into_iter().map(|(i, j, _)| (i, j)).collect(), residuals)
}

/// Returns a symmetric matrix with the value of pair (i,j) in row i and column j, and zeros
/// elsewhere.
fn spread(pairs: &[(usize, usize)], values: &[f64], count: usize) -> DMatrix<f64> {
    let mut matrix = DMatrix::zeros(count, count);
    for (&(i, j), &value) in pairs.iter().zip(values) {
        matrix[(i, j)] = value;
        matrix[(j, i)] = value;
    }
    matrix
}
