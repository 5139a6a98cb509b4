//! The possible points of a site: drawn once per epoch for all sites, then weighted for each site.
//!
//! Hosts are roughly where agents are. So a point is an agent's place plus a normal step whose
//! width is drawn log-uniformly, from much shorter than the distance to the next agent to far
//! outside the map. Because points are drawn once, their distances to all agents are precomputed,
//! and a site costs a few microseconds per landmark.

use nalgebra::DMatrix;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::model::stats::count;

use super::kriging::Kriging;
use super::layout::{LaidOut, reach};

/// Least and greatest width of the step from an agent, as shares of the scale.
const WIDTH: (f64, f64) = (0.02, 1.2);
/// A site's height is an agent's height times a factor drawn uniformly from this range ...
const HEIGHT: (f64, f64) = (0.5, 1.5);
/// ... plus an exponential variable with this mean, as a share of the scale.
const HEIGHT_MEAN: f64 = 0.03;
/// One point in this many is far from all agents: its height is most of its distance to every
/// agent, as for a host behind a slow link. Without far points, no point would fit a host that all
/// landmarks measure at seconds, and its prediction would be the edge of the map.
const ONE_FAR_IN: usize = 30;
/// Least and greatest height of far points, as shares of the scale; drawn log-uniformly. The
/// heights are closer together than measurements are precise.
const FAR_HEIGHT: (f64, f64) = (0.5, 50.0);
/// Far points have their own random stream, so the other points are the same with and without them.
const FAR_STREAM: u64 = 1;

/// Points, and the distances that each predicts.
#[derive(Debug, Clone)]
pub(super) struct Cloud {
    /// Per agent, the corrected log of the softened distance to each point.
    logs: Vec<Vec<f64>>,
}

/// Points before correction, from which several sets of weights can make a cloud.
#[derive(Debug)]
pub(super) struct UncorrectedPoints {
    /// Per point, the agent around which it was drawn.
    around: Vec<usize>,
    /// Per point, the log of the softened distance to every agent.
    logs: Vec<Vec<f64>>,
    /// Per point, the kernel with every agent; empty without kriging.
    near: Vec<Vec<f64>>,
}

impl Cloud {
    /// Per point, the log of the softened distance to this agent.
    pub(super) fn towards(&self, agent: usize) -> &[f64] {
        &self.logs[agent]
    }

    /// The number of agents for which it predicts.
    pub(super) fn agents(&self) -> usize {
        self.logs.len()
    }
}

impl UncorrectedPoints {
    /// Draws `particles` points, and the far points in addition.
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

    /// The cloud, corrected by the residuals of the mesh if `kriging` is given.
    pub(super) fn corrected(&self, kriging: Option<&Kriging>) -> Cloud {
        self.weighed(kriging.map(Kriging::weights), |_| true)
    }

    /// The cloud as drawn from a mesh without `agent`, corrected by `kriging` without that agent's
    /// pairs.
    pub(super) fn without(&self, kriging: &Kriging, agent: usize) -> Cloud {
        self.weighed(Some(&kriging.weights_without(agent)), |around| around != agent)
    }

    /// The points drawn around the agents that `keeps` selects, corrected with these weights: one
    /// row per near agent, one column per predicted agent.
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

/// Draws a point around an agent.
fn beside(agent: &[f64], scale: f64, rng: &mut impl Rng) -> Vec<f64> {
    let dimensions = agent.len() - 1;
    let width = scale * WIDTH.0 * (WIDTH.1 / WIDTH.0).powf(rng.random::<f64>());
    let step = width / count(dimensions.max(1)).sqrt();
    let mut at: Vec<f64> = agent[..dimensions].iter().map(|x| x + step * normal(rng)).collect();
    let own = agent[dimensions] * rng.random_range(HEIGHT.0..HEIGHT.1);
    at.push(own - HEIGHT_MEAN * scale * rng.random_range(f64::MIN_POSITIVE..1.0).ln());
    at
}

/// Draws a point around an agent, with a large height.
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
