//! Held-out agents: agents located like sites, from the landmarks' measurements alone.
//!
//! Held-out agents serve to choose constants, the penalty and landmarks. Sites cannot serve for
//! this, because their true distances to agents are unknown.

use crate::gnp::fit::Measured;
use crate::model::stats::count;

use super::RefinedSwitches;
use super::cloud::{Cloud, UncorrectedPoints};
use super::kriging::{CONSTANTS, Constants, Kriging};
use super::layout::{LaidOut, Layout};
use super::posterior::WeightedPoints;

/// Points of a held-out agent's cloud. Comparing choices needs fewer points than
/// predicting for sites.
const PARTICLES: usize = 600;
/// The share of the errors, smallest first, that enter the score. The largest errors come from
/// unusual pairs, which no choice can improve.
const SCORED: f64 = 0.8;

/// Agents are held out only in meshes of at most this many agents. Each agent has its own cloud
/// (0.5 MB with a hundred agents), and the work grows with the cube of the number of agents. With
/// more agents, the first constants in the list are used, there is no penalty, and landmarks are
/// elected by k-medoids alone.
pub(in crate::gnp) const MOST_AGENTS: usize = 100;

/// The data that an election needs for holding agents out, computed once.
#[derive(Debug)]
pub(in crate::gnp) struct Prepared<'a> {
    measured: &'a Measured,
    layout: Layout,
    kriging: Kriging,
    softening: f64,
    seed: u64,
}

impl<'a> Prepared<'a> {
    /// Lays out all agents of `measured`. The first `landmarks` of them are the landmarks for
    /// choosing the constants. Returns `None` if the kriging cannot be solved.
    pub(in crate::gnp) fn new(measured: &'a Measured, landmarks: usize, seed: u64) -> Option<Self> {
        let ingredients = RefinedSwitches::default();
        let softening = super::SOFTENING * measured.scale();
        let layout = Layout::fit(measured, super::SINGLE_DIMENSION[0], &ingredients, softening, seed);
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

/// Whether the agents are few enough to hold each of them out.
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
    /// Prepares all agents; `None` if there are more than [`MOST_AGENTS`].
    pub(super) fn new(mesh: &LaidOut<'a>, kriging: &'a Kriging, residuals: bool) -> Option<Self> {
        let LaidOut { measured, softening, .. } = *mesh;
        if !can_hold_out(measured) {
            return None;
        }
        let bare = UncorrectedPoints::draw(mesh, Some(kriging), PARTICLES);
        let clouds = (0..measured.agents.len()).map(|agent| bare.without(kriging, agent)).collect();
        Some(Self { measured, kriging, residuals, softening, clouds })
    }

    /// The score of the agents at these indices as landmarks: the mean relative error of the
    /// predictions for pairs of a held-out agent and another non-landmark agent, without the
    /// largest errors. `None` if no such pair was measured.
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

    /// Treats each held-out agent as a site that the landmarks at these indices measured, and
    /// returns the two candidates for each site.
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

    /// All non-landmark agents that a landmark measured: an agent's row of the mesh, and the
    /// posterior of its place from the landmarks' measurements.
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

/// The distances, in milliseconds, of a site's two candidates: the nearest landmark, and the other
/// agent with the smallest expected distance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct HeldOutChoice {
    /// The distance of the nearest landmark.
    pub(super) landmark: f64,
    /// The smallest expected distance among the agents that are not landmarks.
    pub(super) expected: f64,
    /// The true distance of the agent with that expected distance.
    pub(super) truth: f64,
    /// The distance of the truly nearest agent.
    pub(super) nearest: f64,
}

impl HeldOutChoice {
    /// No candidates.
    const fn none() -> Self {
        let far = f64::INFINITY;
        Self { landmark: far, expected: far, truth: far, nearest: far }
    }

    /// The true distance of the agent that is chosen with this penalty on predictions.
    pub(super) fn taken(&self, penalty: f64) -> f64 {
        if self.expected + penalty < self.landmark { self.truth } else { self.landmark }
    }
}
