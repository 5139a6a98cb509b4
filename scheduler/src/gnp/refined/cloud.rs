//! The cloud of a site: the possible points of the site, drawn once per epoch for all sites, and
//! their weights by how well they explain the site's measurements.
//!
//! Most hosts are near agents, so a point is an agent's place plus a normally distributed step. The
//! width of the step is drawn log-uniformly from a range ([`WIDTH`]). The range begins far below
//! the usual distance between neighbouring agents, and ends above the median distance between
//! agents. The distances from the points to all agents are precomputed, so that weighting the
//! points for a site takes a few microseconds per landmark.

use nalgebra::DMatrix;
use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};

use crate::model::stats::count;

use super::kriging::Kriging;
use super::layout::{LaidOut, reach};

/// Points per cloud. Four times as many points change the median error of predictions by less than
/// 2 %.
pub(super) const PARTICLES: usize = 3_000;
/// Least and greatest width of the normal distribution of a point's step from its agent, as shares
/// of the scale (the median measured distance).
const WIDTH: (f64, f64) = (0.02, 1.2);
/// A point's height is an agent's height times a factor drawn uniformly from this range, plus an
/// exponential variable with the mean [`HEIGHT_MEAN`].
const HEIGHT: (f64, f64) = (0.5, 1.5);
/// The mean of the exponential part of a point's height, as a share of the scale.
const HEIGHT_MEAN: f64 = 0.03;
/// The number of other points for each far point that is added. The distance of a far point to
/// every agent is mostly the point's height, as for a host behind a slow link. Without far points,
/// a host to which all landmarks measure round trips of seconds would be placed at the edge of the
/// map.
const ONE_FAR_IN: usize = 30;
/// Least and greatest height added to a far point, as shares of the scale; drawn log-uniformly.
/// With 100 far points, neighbouring heights differ by about 5 %, which is about the error of
/// measurements.
const FAR_HEIGHT: (f64, f64) = (0.5, 50.0);
/// Far points have their own random stream, so that drawing them does not change the other points.
const FAR_STREAM: u64 = 1;

/// The points, stored only as their corrected distances to all agents.
#[derive(Debug, Clone)]
pub(super) struct Cloud {
    /// For each agent, the corrected logarithms of the softened distances to all points.
    logs: Vec<Vec<f64>>,
}

/// Points before their distances are corrected. Different correction weights make different clouds
/// from the same points.
#[derive(Debug)]
pub(super) struct UncorrectedPoints {
    /// For each point, the agent around which it was drawn.
    around: Vec<usize>,
    /// For each point, the logs of the softened distances to all agents.
    logs: Vec<Vec<f64>>,
    /// For each point, the kriging kernel between the point and every agent; empty without kriging.
    near: Vec<Vec<f64>>,
}

impl Cloud {
    /// For each point, the log of the softened distance to this agent.
    fn towards(&self, agent: usize) -> &[f64] {
        &self.logs[agent]
    }

    pub(super) fn agents(&self) -> usize {
        self.logs.len()
    }
}

impl UncorrectedPoints {
    /// Draws `particles` points around agents, and additional far points.
    pub(super) fn draw(mesh: &LaidOut<'_>, kriging: Option<&Kriging>, particles: usize) -> Self {
        let LaidOut { measured, layout, softening, seed } = *mesh;
        let scale = measured.scale();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let agents = layout.points.len();
        let mut bare = Self { around: Vec::new(), logs: Vec::new(), near: Vec::new() };
        let mut far = ChaCha8Rng::seed_from_u64(seed);
        far.set_stream(FAR_STREAM);
        for particle in 0..particles + particles / ONE_FAR_IN {
            let around = particle % agents;
            let at = if particle < particles {
                beside(&layout.points[around], scale, &mut rng)
            } else {
                far_off(&layout.points[around], scale, &mut far)
            };
            bare.around.push(around);
            bare.logs.push(layout.points.iter().map(|point| (reach(&at, point).0 + softening).ln()).collect());
            bare.near.push(kriging.map_or_else(Vec::new, |kriging| kriging.near(&at)));
        }
        bare
    }

    /// Returns the cloud, corrected by the residuals of the mesh if `kriging` is given.
    pub(super) fn corrected(&self, kriging: Option<&Kriging>) -> Cloud {
        self.weighed(kriging.map(Kriging::weights), |_| true)
    }

    /// Returns the cloud as if drawn from a mesh without `agent`: without the points around the
    /// agent, and corrected by `kriging` without the agent's pairs.
    pub(super) fn without(&self, kriging: &Kriging, agent: usize) -> Cloud {
        self.weighed(Some(&kriging.weights_without(agent)), |around| around != agent)
    }

    /// Returns the points drawn around the agents that `keeps` accepts, corrected with `weights`.
    /// `weights` has one row per agent of the kriging kernel, and one column per predicted agent.
    fn weighed(&self, weights: Option<&DMatrix<f64>>, keeps: impl Fn(usize) -> bool) -> Cloud {
        let kept: Vec<usize> = (0..self.logs.len()).filter(|&point| keeps(self.around[point])).collect();
        let agents = self.logs.first().map_or(0, Vec::len);
        let towards = |agent: usize| {
            let log = |&point: &usize| {
                let correction: f64 = weights.map_or(0.0, |weights| {
                    self.near[point].iter().zip(weights.column(agent).iter()).map(|(near, weight)| near * weight).sum()
                });
                self.logs[point][agent] + correction
            };
            kept.iter().map(log).collect()
        };
        Cloud { logs: (0..agents).map(towards).collect() }
    }
}

fn beside(agent: &[f64], scale: f64, rng: &mut impl Rng) -> Vec<f64> {
    let dimensions = agent.len() - 1;
    let width = scale * WIDTH.0 * (WIDTH.1 / WIDTH.0).powf(rng.random::<f64>());
    let step = width / count(dimensions.max(1)).sqrt();
    let mut at: Vec<f64> = agent[..dimensions].iter().map(|x| x + step * normal(rng)).collect();
    let own = agent[dimensions] * rng.random_range(HEIGHT.0..HEIGHT.1);
    at.push(own - HEIGHT_MEAN * scale * rng.random_range(f64::MIN_POSITIVE..1.0).ln());
    at
}

/// Draws a far point: a point around an agent, with a large height.
fn far_off(agent: &[f64], scale: f64, rng: &mut impl Rng) -> Vec<f64> {
    let mut at = beside(agent, scale, rng);
    let height = scale * FAR_HEIGHT.0 * (FAR_HEIGHT.1 / FAR_HEIGHT.0).powf(rng.random::<f64>());
    at.iter_mut().last().into_iter().for_each(|last| *last += height);
    at
}

/// Draws a standard normal number (Box and Muller 1958).
fn normal(rng: &mut impl Rng) -> f64 {
    let radius = (-2.0 * rng.random_range(f64::MIN_POSITIVE..1.0).ln()).sqrt();
    radius * (std::f64::consts::TAU * rng.random::<f64>()).cos()
}

/// Scale of the error of a measurement's logarithm. The error has a Student density with three
/// degrees of freedom, so that one outlier among nine measurements hardly affects the result.
const ERROR_SCALE: f64 = 0.06;
/// Maximum of z² / 3 for a standardised error z, so that the products over all measurements stay
/// finite.
const MOST_SQUARED: f64 = 2_500.0;
/// Points with a weight below this share of the greatest weight are dropped, to save work.
const LIGHTEST: f64 = 1e-4;

/// The points of one layer's cloud, without the dropped points of small weight.
#[derive(Debug)]
pub(super) struct WeightedPoints {
    /// The sum of the weights is 1.
    pub(super) weights: Vec<f64>,
    /// For each agent, the logs of the softened distances to all points.
    pub(super) logs: Vec<Vec<f64>>,
}

impl WeightedPoints {
    /// Weights the points of a cloud by the measurements `known` (an agent's index, and the log of
    /// its softened measurement). If `kriging` is given, the residuals of the measurements correct
    /// the distances to all agents. If `all` is false, only the point with the greatest weight is
    /// used.
    pub(super) fn of(cloud: &Cloud, kriging: Option<&Kriging>, known: &[(usize, f64)], all: bool) -> Self {
        let (kept, weights) = heaviest(likelihoods(cloud, known), all);
        let mut logs: Vec<Vec<f64>> = (0..cloud.agents())
            .map(|agent| {
                let towards = cloud.towards(agent);
                kept.iter().map(|&point| towards[point]).collect()
            })
            .collect();
        if let Some(kriging) = kriging {
            let from: Vec<usize> = known.iter().map(|&(agent, _)| agent).collect();
            let left: Vec<Vec<f64>> =
                known.iter().map(|&(agent, log)| logs[agent].iter().map(|computed| log - computed).collect()).collect();
            for (logs, gains) in logs.iter_mut().zip(kriging.gains(&from)) {
                for (gain, left) in gains.iter().zip(&left) {
                    for (log, left) in logs.iter_mut().zip(left) {
                        *log += gain * left;
                    }
                }
            }
        }
        Self { weights, logs }
    }

    /// The weighted median of the log distance.
    pub(super) fn median(&self, agent: usize) -> f64 {
        let mut points: Vec<(f64, f64)> = self.logs[agent].iter().copied().zip(self.weights.iter().copied()).collect();
        // The median is selected in linear time, because sorting would take most of the time of a
        // prediction.
        let (mut left, mut below, mut median) = (points.as_mut_slice(), 0.0, 0.0);
        while !left.is_empty() {
            let (low, middle, high) = left.select_nth_unstable_by(left.len() / 2, |a, b| a.0.total_cmp(&b.0));
            median = middle.0;
            let weight: f64 = low.iter().map(|(_, weight)| weight).sum();
            if below + weight >= 0.5 {
                left = low;
            } else if below + weight + middle.1 >= 0.5 {
                break;
            } else {
                below += weight + middle.1;
                left = high;
            }
        }
        median
    }

    /// The mean and the mean square of the log distance, and the mean distance.
    pub(super) fn moments(&self, agent: usize) -> (f64, f64, f64) {
        let (mut mean, mut square, mut distance) = (0.0, 0.0, 0.0);
        for (log, weight) in self.logs[agent].iter().zip(&self.weights) {
            mean += weight * log;
            square += weight * log * log;
            distance += weight * log.exp();
        }
        (mean, square, distance)
    }

    /// The mean of the log distance.
    pub(super) fn mean(&self, agent: usize) -> f64 {
        self.logs[agent].iter().zip(&self.weights).map(|(log, weight)| weight * log).sum()
    }

    /// The mean distance.
    pub(super) fn expected(&self, agent: usize) -> f64 {
        self.logs[agent].iter().zip(&self.weights).map(|(log, weight)| weight * log.exp()).sum()
    }
}

/// For each point, the product of `1 + z² / 3` over all measurements, where `z` is the standardised
/// error. The likelihood (Student's t, three degrees of freedom) is this product to the power -2.
fn likelihoods(cloud: &Cloud, known: &[(usize, f64)]) -> Vec<f64> {
    let Some(&(first, _)) = known.first() else { return Vec::new() };
    let mut products = vec![1.0; cloud.towards(first).len()];
    let per_third = 1.0 / (3.0 * ERROR_SCALE * ERROR_SCALE);
    for &(agent, log) in known {
        for (product, computed) in products.iter_mut().zip(cloud.towards(agent)) {
            let error = log - computed;
            *product *= 1.0 + (error * error * per_third).min(MOST_SQUARED);
        }
    }
    products
}

/// The indices of the points that are not dropped, and their weights, whose sum is 1.
fn heaviest(products: Vec<f64>, all: bool) -> (Vec<usize>, Vec<f64>) {
    let least = products.iter().copied().fold(f64::INFINITY, f64::min);
    let share = |product: f64| (least / product) * (least / product);
    let lightest = if all { LIGHTEST } else { 1.0 };
    let mut kept = Vec::new();
    let mut weights = Vec::new();
    for (point, product) in products.into_iter().enumerate() {
        let weight = share(product);
        if weight >= lightest {
            kept.push(point);
            weights.push(weight);
        }
    }
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
    (kept, weights)
}
