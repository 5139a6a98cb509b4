//! Held-out agents: agents located like sites, from the landmarks' measurements alone.
//!
//! The kriging constants, the prediction penalty and the landmarks are chosen by the errors of the
//! distances predicted for held-out agents. Sites cannot be used instead, because their true
//! distances to agents are unknown.

use crate::gnp::RefinedSwitches;
use crate::gnp::fit::Measured;
use crate::model::stats::count;

use super::cloud::{Cloud, UncorrectedPoints};
use super::kriging::{CONSTANTS, Constants, Kriging};
use super::layout::{LaidOut, Layout, SINGLE_DIMENSION, SOFTENING};
use super::weighted_points::WeightedPoints;

/// Points of a held-out agent's cloud. Comparing sets of constants or of landmarks needs fewer
/// points than predicting for sites.
const PARTICLES: usize = 600;
/// The share of the errors that counts in the score. The largest errors are left out, because they
/// come from unusual pairs, which no constants and no landmarks predict well.
const SCORED: f64 = 0.8;

/// Agents are held out only in meshes of at most this many agents. Each agent needs its own cloud
/// (0.5 MB with a hundred agents), and the work grows with the cube of the number of agents. In
/// larger meshes, the first entry of [`CONSTANTS`] is used, there is no penalty, and landmarks are
/// elected by k-medoids alone.
pub(in crate::gnp) const MOST_AGENTS: usize = 100;

/// The data that an election needs to hold agents out, computed once.
#[derive(Debug)]
pub(in crate::gnp) struct Prepared<'a> {
    measured: &'a Measured,
    layout: Layout,
    kriging: Kriging,
    softening: f64,
    seed: u64,
}

impl<'a> Prepared<'a> {
    /// Places all agents of `measured`. The first `landmarks` agents are the landmarks with which
    /// the constants are chosen. Returns `None` if the kriging cannot be fitted.
    pub(in crate::gnp) fn new(measured: &'a Measured, landmarks: usize, seed: u64) -> Option<Self> {
        let ingredients = RefinedSwitches::default();
        let softening = SOFTENING * measured.scale();
        let layout = Layout::fit(measured, SINGLE_DIMENSION[0], &ingredients, softening, seed);
        let mesh = LaidOut { measured, layout: &layout, softening, seed };
        let kriging = Kriging::fit(&mesh, choose_constants(&mesh, landmarks, &ingredients))?;
        Some(Self { measured, layout, kriging, softening, seed })
    }

    /// Holds out every agent; `None` if there are too many agents.
    pub(in crate::gnp) fn held_out(&self) -> Option<HeldOut<'_>> {
        let Self { measured, layout, kriging, softening, seed } = self;
        HeldOut::new(&LaidOut { measured, layout, softening: *softening, seed: *seed }, kriging, true)
    }
}

/// Chooses the kriging constants that predict held-out agents best. The first `landmarks` agents of
/// the mesh are the landmarks.
pub(super) fn choose_constants(mesh: &LaidOut<'_>, landmarks: usize, ingredients: &RefinedSwitches) -> Constants {
    if !ingredients.constants || !can_hold_out(mesh.measured) {
        return CONSTANTS[0];
    }
    let landmarks: Vec<usize> = (0..landmarks).collect();
    let error = |constants: &Constants| {
        let kriging = Kriging::fit(mesh, *constants)?;
        HeldOut::new(mesh, &kriging, ingredients.residuals)?.error(&landmarks)
    };
    let scored = CONSTANTS.iter().map(|constants| (error(constants).unwrap_or(f64::INFINITY), constants));
    scored.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(CONSTANTS[0], |(_, constants)| *constants)
}

pub(super) const fn can_hold_out(measured: &Measured) -> bool {
    measured.agents.len() <= MOST_AGENTS
}

/// All agents, each held out once, with one layout and one kriging.
#[derive(Debug)]
pub(in crate::gnp) struct HeldOut<'a> {
    measured: &'a Measured,
    kriging: &'a Kriging,
    residuals: bool,
    softening: f64,
    /// For each agent, the cloud from a mesh without that agent.
    clouds: Vec<Cloud>,
}

impl<'a> HeldOut<'a> {
    /// Draws the points of each agent's cloud at random; `None` if there are more than
    /// [`MOST_AGENTS`] agents.
    pub(super) fn new(mesh: &LaidOut<'a>, kriging: &'a Kriging, residuals: bool) -> Option<Self> {
        let LaidOut { measured, softening, .. } = *mesh;
        if !can_hold_out(measured) {
            return None;
        }
        let bare = UncorrectedPoints::draw(mesh, Some(kriging), PARTICLES);
        let clouds = (0..measured.agents.len()).map(|agent| bare.without(kriging, agent)).collect();
        Some(Self { measured, kriging, residuals, softening, clouds })
    }

    /// The score of a set of landmarks, given by their indices: the mean relative error of the
    /// predicted distances between held-out agents and other non-landmark agents, without the
    /// largest errors. `None` if no such distance was measured.
    pub(in crate::gnp) fn error(&self, landmarks: &[usize]) -> Option<f64> {
        let mut errors = Vec::new();
        for (row, weighed) in self.sites(landmarks) {
            for &(other, distance) in row.iter().filter(|(j, _)| !landmarks.contains(j)) {
                let computed = weighed.mean(other).exp() - self.softening;
                errors.push(((computed - distance) / distance).abs());
            }
        }
        errors.sort_by(f64::total_cmp);
        let scored = count(errors.len()) * SCORED;
        let (mut sum, mut summed) = (0.0, 0.0);
        for error in errors {
            if summed >= scored {
                break;
            }
            sum += error;
            summed += 1.0;
        }
        (summed > 0.0).then(|| sum / summed)
    }

    /// Treats each held-out agent as a site that the agents at the indices `landmarks` measured,
    /// and returns two candidate agents for each site.
    pub(super) fn choices(&self, landmarks: &[usize]) -> Vec<HeldOutChoice> {
        let choice = |(row, weighed): (&[(usize, f64)], WeightedPoints)| {
            let mut choice = HeldOutChoice::none();
            for &(other, distance) in row {
                choice.nearest = choice.nearest.min(distance);
                if landmarks.contains(&other) {
                    choice.landmark = choice.landmark.min(distance);
                    continue;
                }
                let expected = weighed.expected(other) - self.softening;
                if expected < choice.expected {
                    (choice.expected, choice.truth) = (expected, distance);
                }
            }
            choice
        };
        self.sites(landmarks).map(choice).collect()
    }

    /// For each non-landmark agent that a landmark measured: the agent's row of the mesh, and the
    /// posterior of its place, given the landmarks' measurements.
    fn sites(&self, landmarks: &[usize]) -> impl Iterator<Item = (&[(usize, f64)], WeightedPoints)> {
        self.measured.rows.iter().enumerate().filter(|(site, _)| !landmarks.contains(site)).filter_map(|(site, row)| {
            let soft = |distance: f64| (distance + self.softening).ln();
            let known: Vec<(usize, f64)> =
                row.iter().filter(|(j, _)| landmarks.contains(j)).map(|&(j, distance)| (j, soft(distance))).collect();
            if known.is_empty() {
                return None;
            }
            let kriging = self.residuals.then_some(self.kriging);
            Some((row.as_slice(), WeightedPoints::of(&self.clouds[site], kriging, &known, true)))
        })
    }
}

/// The distances, in milliseconds, of a site's two candidates: the nearest landmark, and the
/// non-landmark agent with the smallest expected distance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct HeldOutChoice {
    /// The measured distance of the nearest landmark.
    pub(super) landmark: f64,
    /// The smallest expected distance among the agents that are not landmarks.
    pub(super) expected: f64,
    /// The measured distance of the agent with the smallest expected distance.
    pub(super) truth: f64,
    /// The measured distance of the nearest agent.
    pub(super) nearest: f64,
}

impl HeldOutChoice {
    const fn none() -> Self {
        let far = f64::INFINITY;
        Self { landmark: far, expected: far, truth: far, nearest: far }
    }

    /// The measured distance of the candidate that is chosen if `penalty` is added to the expected
    /// distance; both in milliseconds.
    pub(super) fn taken(&self, penalty: f64) -> f64 {
        if self.expected + penalty < self.landmark { self.truth } else { self.landmark }
    }
}
