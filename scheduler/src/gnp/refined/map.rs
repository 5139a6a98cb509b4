//! Builds the refined map of one epoch: for each number of dimensions the layout, the kriging and
//! the cloud. Chooses the kriging's constants and the prediction penalty by held-out agents, which
//! are located like sites, from the landmarks' measurements alone.
//!
//! The kriging constants, the prediction penalty and the landmarks are chosen by the errors of the
//! distances predicted for held-out agents. Sites cannot be used instead, because their true
//! distances to agents are unknown.
//!
//! The shortest of many predictions is usually too short (the winner's curse: Capen, Clapp and
//! Campbell 1971). The nearest landmark's distance is measured, not predicted, so it is not usually
//! too short.
//!
//! The best penalty depends on the network, so it is chosen by holding out agents as sites. The
//! held-out agents are located by the current landmarks, and by sets of agents drawn at random as
//! landmarks. More sets make the result depend less on chance.

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use crate::gnp::measured_distances::{FitError, Measured, check};
use crate::gnp::{Mesh, RefinedSwitches};
use crate::model::AgentId;
use crate::model::stats::count;

use super::cloud::{Cloud, PARTICLES, UncorrectedPoints, WeightedPoints};
use super::kriging::{CONSTANTS, Constants, Kriging};
use super::layout::{DIMENSIONS, LaidOut, Layout, SINGLE_DIMENSION, SOFTENING};

/// The refined map of one epoch.
#[derive(Debug)]
pub struct Refined {
    pub(super) agents: Vec<AgentId>,
    pub(super) index: BTreeMap<AgentId, usize>,
    pub(super) layers: Vec<Layer>,
    pub(super) ingredients: RefinedSwitches,
    /// The softening of logarithms ([`super::layout::SOFTENING`]), in milliseconds.
    pub(super) softening: f64,
    /// Milliseconds added to a prediction that is compared with a measurement.
    pub(super) penalty: f64,
}

impl Refined {
    /// Builds the map of all agents that a chain of measurements connects to the landmarks. Equal
    /// arguments give equal maps.
    pub fn new(mesh: &Mesh, landmarks: &[AgentId], ingredients: &RefinedSwitches, seed: u64) -> Result<Self, FitError> {
        check(landmarks, 1)?;
        let measured = Measured::joined(mesh, landmarks)?;
        let softening = SOFTENING * measured.scale();
        let dimensions: &[usize] = if ingredients.dimensions { &DIMENSIONS } else { &SINGLE_DIMENSION };
        let layouts: Vec<Layout> =
            dimensions.iter().map(|&d| Layout::fit(&measured, d, ingredients, softening, seed)).collect();
        let meshes: Vec<LaidOut<'_>> =
            layouts.iter().map(|layout| LaidOut { measured: &measured, layout, softening, seed }).collect();
        let middle = meshes[meshes.len() / 2];
        let constants = ingredients.kriging.then(|| choose_constants(&middle, landmarks.len(), ingredients));
        let layer = |mesh: &LaidOut<'_>| {
            let kriging = constants.and_then(|constants| Kriging::fit(mesh, constants));
            let cloud = UncorrectedPoints::draw(mesh, kriging.as_ref(), PARTICLES).corrected(kriging.as_ref());
            Layer { kriging, cloud }
        };
        let layers = meshes.iter().map(layer).collect();
        let penalty = constants
            .filter(|_| ingredients.penalty)
            .map_or(0.0, |constants| choose_penalty(&middle, constants, landmarks.len(), ingredients.residuals));
        let agents = measured.agents;
        let index = agents.iter().enumerate().map(|(i, &agent)| (agent, i)).collect();
        Ok(Self { agents, index, layers, ingredients: *ingredients, softening, penalty })
    }

    /// The agents for which the map can predict: the landmarks, then all other agents.
    pub fn agents(&self) -> &[AgentId] {
        &self.agents
    }
}

/// The kriging and the cloud for one number of dimensions.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) kriging: Option<Kriging>,
    pub(super) cloud: Cloud,
}

/// Points of a held-out agent's cloud. Comparing sets of constants or of landmarks needs fewer
/// points than predicting for sites.
const HELD_OUT_PARTICLES: usize = 600;
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
fn choose_constants(mesh: &LaidOut<'_>, landmarks: usize, ingredients: &RefinedSwitches) -> Constants {
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

const fn can_hold_out(measured: &Measured) -> bool {
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
        let bare = UncorrectedPoints::draw(mesh, Some(kriging), HELD_OUT_PARTICLES);
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
    fn choices(&self, landmarks: &[usize]) -> Vec<HeldOutChoice> {
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
struct HeldOutChoice {
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

/// The penalties to choose from, as shares of the map's scale (the median measured distance). With
/// a penalty greater than all of these, the nearest landmark would always be chosen.
const PARTS: [f64; 13] = [0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.11, 0.15, 0.2, 0.3];
/// Number of drawn sets of landmarks, in addition to the current landmarks.
const DRAWN_SETS: usize = 30;
/// Two penalties count as equally good if the agents chosen with them have about the same total
/// distance: the difference is at most this share of the total distance of the nearest agents. The
/// smallest of equally good penalties is chosen, so that the predictions of a good map are used.
const BY_CHANCE: f64 = 0.01;

/// Returns the penalty in milliseconds; 0 if agents cannot be held out. The first `landmarks`
/// agents of the mesh are the landmarks.
fn choose_penalty(mesh: &LaidOut<'_>, constants: Constants, landmarks: usize, residuals: bool) -> f64 {
    if !can_hold_out(mesh.measured) {
        return 0.0;
    }
    let Some(kriging) = Kriging::fit(mesh, constants) else { return 0.0 };
    let Some(held_out) = HeldOut::new(mesh, &kriging, residuals) else { return 0.0 };
    let mut rng = ChaCha8Rng::seed_from_u64(mesh.seed);
    let mut agents: Vec<usize> = (0..mesh.measured.agents.len()).collect();
    let mut choices = held_out.choices(&agents[..landmarks]);
    for _ in 0..DRAWN_SETS {
        agents.shuffle(&mut rng);
        choices.extend(held_out.choices(&agents[..landmarks]));
    }
    smallest(&choices, mesh.measured.scale()) * mesh.measured.scale()
}

/// Returns, as a share of the scale, the smallest penalty that is as good as the best penalty (see
/// [`BY_CHANCE`]). `scale` is in milliseconds.
fn smallest(choices: &[HeldOutChoice], scale: f64) -> f64 {
    let total = |part: f64| choices.iter().map(|choice| choice.taken(part * scale)).sum::<f64>();
    let totals = PARTS.map(total);
    let least = totals.iter().copied().fold(f64::INFINITY, f64::min);
    let by_chance = BY_CHANCE * choices.iter().map(|choice| choice.nearest).sum::<f64>();
    let as_good = PARTS.iter().zip(totals).find(|(_, total)| *total <= least + by_chance);
    as_good.map_or(0.0, |(part, _)| *part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use crate::gnp::fixture::{agent, mesh_of, rtt};
    use crate::gnp::mesh_and_distance::distance;
    use crate::gnp::refined::kriging;
    use crate::gnp::refined::map::{HeldOut, MOST_AGENTS};
    use crate::gnp::{LocateError, fixture};
    use crate::model::Rtt;

    use super::*;

    fn hosts(count: usize, seed: u64) -> Vec<Vec<f64>> {
        fixture::hosts(count, 3, seed)
    }

    fn map_of(hosts: &[Vec<f64>], landmarks: usize, ingredients: &RefinedSwitches) -> Refined {
        let landmarks: Vec<AgentId> = (0..landmarks).map(agent).collect();
        Refined::new(&mesh_of(hosts, 1.0), &landmarks, ingredients, 1).unwrap()
    }

    fn measured(hosts: &[Vec<f64>], site: &[f64], landmarks: usize) -> Vec<(AgentId, Rtt)> {
        (0..landmarks).map(|i| (agent(i), rtt(distance(site, &hosts[i])))).collect()
    }

    #[test]
    fn in_a_network_that_is_a_map_the_nearest_agents_of_a_site_are_found() {
        let hosts = hosts(18, 4);
        let (sites, agents) = hosts.split_at(6);
        let map = map_of(agents, 7, &RefinedSwitches::default());
        let mut errors: Vec<f64> = Vec::new();
        for site in sites {
            let seen = measured(agents, site, 7);
            let posterior = map.locate(&seen).unwrap();
            for (i, host) in agents.iter().enumerate().skip(7) {
                let truth = distance(site, host);
                let predicted = posterior.predict(agent(i)).unwrap();
                errors.push((predicted.median.as_millis_f64() - truth).abs() / truth);
                assert!(predicted.spread > 0.0 && predicted.spread < 2.0, "{predicted:?}");
            }
        }
        errors.sort_by(f64::total_cmp);
        assert!(errors[errors.len() / 2] < 0.12, "{errors:?}");
    }

    #[test]
    fn a_host_behind_a_long_way_of_its_own_is_far_from_everybody() {
        let hosts = hosts(18, 4);
        let (sites, agents) = hosts.split_at(1);
        let map = map_of(agents, 7, &RefinedSwitches::default());
        // The heights exceed the width of the map, which is a few hundred milliseconds.
        for height in [500.0, 2_400.0, 8_000.0] {
            let mut site = sites[0].clone();
            site[3] = height;
            let posterior = map.locate(&measured(agents, &site, 7)).unwrap();
            for (i, host) in agents.iter().enumerate().skip(7) {
                let truth = distance(&site, host);
                let predicted = posterior.predict(agent(i)).unwrap().median.as_millis_f64();
                assert!((predicted / truth).ln().abs() < 0.25, "{predicted} for {truth} at {height}");
            }
        }
    }

    #[test]
    fn every_ingredient_can_be_left_out_and_changes_what_is_predicted() {
        let hosts = hosts(8, 9);
        let (sites, agents) = hosts.split_at(1);
        let seen = measured(agents, &sites[0], 4);
        let all = map_of(agents, 4, &RefinedSwitches::default());
        let with = all.locate(&seen).unwrap().predict(agent(6)).unwrap();
        for name in RefinedSwitches::NAMES {
            let ingredients = RefinedSwitches::default().without(name).unwrap();
            assert_ne!(ingredients, RefinedSwitches::default(), "{name}");
            let map = map_of(agents, 4, &ingredients);
            let without = map.locate(&seen).unwrap().predict(agent(6)).unwrap();
            // The switches `robust`, `constants` and `penalty` may change nothing here. The robust
            // loss affects only unusual pairs, and this map has none. The first constants in the
            // list may be the best ones. Exact predictions need no penalty.
            if !["robust", "constants", "penalty"].contains(name) {
                assert_ne!(with, without, "{name}");
            }
        }
        assert_eq!(RefinedSwitches::default().without("salt"), None);
    }

    #[test]
    fn those_who_confirm_are_distinct_candidates_and_no_more_than_there_are() {
        let hosts = hosts(13, 2);
        let (site, agents) = hosts.split_last().unwrap();
        let map = map_of(agents, 7, &RefinedSwitches::default());
        let seen = measured(agents, site, 7);
        let posterior = map.locate(&seen).unwrap();
        let others: Vec<AgentId> = (7..13).map(agent).collect();
        assert!(posterior.confirm(0, &others).is_empty());
        let vague = map.locate(&seen[..1]).unwrap();
        let mut three = vague.confirm(3, &others);
        assert!(three.iter().all(|chosen| others.contains(chosen)));
        three.sort_unstable();
        three.dedup();
        assert_eq!(three.len(), 3, "one measurement leaves much open");
        assert!(vague.confirm(99, &others).len() <= 5, "the thirteenth is the site, and unknown to the map");
    }

    #[test]
    fn nobody_confirms_a_site_beside_an_agent_that_has_measured_it() {
        let hosts = hosts(12, 2);
        let map = map_of(&hosts, 7, &RefinedSwitches::default());
        let mut site = hosts[0].clone();
        site[0] += 1.0;
        let others: Vec<AgentId> = (7..12).map(agent).collect();
        let confirm = |seen: &[(AgentId, Rtt)]| map.locate(seen).unwrap().confirm(3, &others);
        assert_eq!(confirm(&measured(&hosts, &site, 7)), []);
        assert_eq!(confirm(&measured(&hosts, &site, 7)[1..2]).len(), 3, "one that is not beside it knows little");
    }

    #[test]
    fn in_a_large_fleet_nobody_is_held_out_and_there_is_a_map_all_the_same() {
        let mut mesh = Mesh::new();
        let hosts = hosts(MOST_AGENTS + 1, 6);
        for (i, host) in hosts.iter().enumerate() {
            // Agents measure only two landmarks, because the work of kriging grows with the cube
            // of the number of pairs.
            for (j, landmark) in hosts[..2].iter().enumerate().filter(|(j, _)| *j != i) {
                mesh.insert(agent(i), agent(j), rtt(distance(host, landmark)));
            }
        }
        let landmarks: Vec<AgentId> = (0..2).map(agent).collect();
        let measured = Measured::joined(&mesh, &landmarks).unwrap();
        let ingredients = RefinedSwitches::default();
        let layout = Layout::fit(&measured, 3, &ingredients, 2.0, 1);
        let laid_out = LaidOut { measured: &measured, layout: &layout, softening: 2.0, seed: 1 };
        let constants = choose_constants(&laid_out, 2, &ingredients);
        assert_eq!(constants, kriging::CONSTANTS[0], "the first in the list, as nobody can be held out");
        let kriging = Kriging::fit(&laid_out, constants).unwrap();
        assert!(HeldOut::new(&laid_out, &kriging, true).is_none());
        let single = ingredients.without("dimensions").unwrap();
        let map = Refined::new(&mesh, &landmarks, &single, 1).unwrap();
        assert_eq!(map.agents().len(), MOST_AGENTS + 1);
        assert!(map.locate(&[(agent(7), rtt(10.0))]).unwrap().predict(agent(99)).is_some());
    }

    #[test]
    fn an_agent_the_mesh_does_not_join_is_not_predicted_for() {
        let mut mesh = mesh_of(&hosts(5, 3), 1.0);
        mesh.insert(agent(20), agent(21), rtt(3.0));
        let landmarks: Vec<AgentId> = (0..4).map(agent).collect();
        let map = Refined::new(&mesh, &landmarks, &RefinedSwitches::default(), 1).unwrap();
        assert_eq!(map.agents().len(), 5);
        let posterior = map.locate(&[(agent(0), rtt(10.0))]).unwrap();
        assert_eq!(posterior.predict(agent(20)), None);
        assert_eq!(map.locate(&[(agent(20), rtt(9.0))]).unwrap_err(), LocateError::NothingMeasured { measured: 1 });
        assert!(Refined::new(&mesh, &landmarks[..1], &RefinedSwitches::default(), 1).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(6))]

        #[test]
        fn whatever_was_measured_predictions_are_positive_and_the_order_does_not_matter(
            micros in proptest::collection::vec(1_i64..600_000_000, 1..6),
            mesh in proptest::collection::vec(1_i64..600_000_000, 21),
            seed in any::<u64>(),
        ) {
            let mut hostile = Mesh::new();
            let pairs = (0..7).flat_map(|i| (0..i).map(move |j| (i, j)));
            for ((i, j), us) in pairs.zip(&mesh) {
                hostile.insert(agent(i), agent(j), Rtt::try_from_micros(*us).unwrap());
            }
            let landmarks: Vec<AgentId> = (0..5).map(agent).collect();
            let map = Refined::new(&hostile, &landmarks, &RefinedSwitches::default(), seed).unwrap();
            let mut seen: Vec<(AgentId, Rtt)> =
                micros.iter().enumerate().map(|(i, &us)| (agent(i), Rtt::try_from_micros(us).unwrap())).collect();
            let predict = |seen: &[(AgentId, Rtt)]| {
                let posterior = map.locate(seen).unwrap();
                map.agents().iter().map(|&agent| posterior.predict(agent).unwrap()).collect::<Vec<_>>()
            };
            let predicted = predict(&seen);
            for prediction in &predicted {
                prop_assert!(prediction.spread.is_finite() && prediction.spread >= 0.0, "{prediction:?}");
            }
            seen.reverse();
            prop_assert_eq!(predicted, predict(&seen));
        }
    }

    /// A landmark is 50 ms away; the agent expected at 40 ms is truly at `truth` ms.
    fn predicted_nearer(truth: f64) -> HeldOutChoice {
        HeldOutChoice { landmark: 50.0, expected: 40.0, truth, nearest: truth.min(50.0) }
    }

    #[test]
    fn a_landmark_is_preferred_where_predictions_disappoint_and_not_where_they_hold() {
        let penalty = |truth: f64| smallest(&[predicted_nearer(truth); 20], 100.0);
        assert!(penalty(40.0).abs() < 1e-12, "{}", penalty(40.0));
        assert!((penalty(90.0) - 0.11).abs() < 1e-12, "11 ms is the first beyond 10: {}", penalty(90.0));
    }

    #[test]
    fn one_disappointment_among_many_is_chance_and_nobody_held_out_is_none() {
        let mut choices = vec![predicted_nearer(40.0); 200];
        choices.push(predicted_nearer(90.0));
        assert!(smallest(&choices, 100.0).abs() < 1e-12);
        assert!(smallest(&[], 100.0).abs() < 1e-12);
    }
}
