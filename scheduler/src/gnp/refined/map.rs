//! Builds the refined map of one epoch: for each number of dimensions the layout, the kriging and
//! the cloud, and one prediction penalty.

use std::collections::BTreeMap;

use crate::gnp::fit::{FitError, Measured, check};
use crate::gnp::{Mesh, RefinedSwitches};
use crate::model::AgentId;

use super::cloud::{Cloud, PARTICLES, UncorrectedPoints};
use super::held_out::choose_constants;
use super::kriging::Kriging;
use super::layout::{DIMENSIONS, LaidOut, Layout, SINGLE_DIMENSION, SOFTENING};
use super::penalty;

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
            .map_or(0.0, |constants| penalty::choose(&middle, constants, landmarks.len(), ingredients.residuals));
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

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::gnp::LocateError;
    use crate::gnp::distance::distance;
    use crate::gnp::fixture::{self, agent, mesh_of, rtt};
    use crate::gnp::refined::held_out::{HeldOut, MOST_AGENTS};
    use crate::gnp::refined::kriging;
    use crate::model::Rtt;

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
}
