//! Holds the agents that may become landmarks, their distances, and the cost of electing some of
//! them.

use std::collections::BTreeMap;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use crate::gnp::Mesh;
use crate::model::stats::count;
use crate::model::{AgentId, Rtt};

use super::city_and_carrier::CityAndCarrier;
use super::eligibility::is_eligible;

/// An agent that may become a landmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nominee {
    pub agent: AgentId,
    /// Empty if unknown.
    pub city: String,
    /// Empty if unknown.
    pub carrier: String,
}

pub(super) struct Nominees<'a> {
    /// Sorted by identifier, without duplicates.
    pub(super) nominees: Vec<&'a Nominee>,
    same: CityAndCarrier,
    /// Indices of the nominees that may be elected, in a random order. The order decides between
    /// choices of equal cost.
    pub(super) eligible: Vec<usize>,
    /// The distance of each pair of nominees, in milliseconds. An unmeasured pair gets the greatest
    /// measured distance.
    pub(super) distance: Vec<Vec<f64>>,
    /// Mean distance of the measured pairs, in milliseconds: the unit of the penalties.
    pub(super) mean: f64,
}

impl<'a> Nominees<'a> {
    pub(super) fn new(mesh: &Mesh, nominees: &'a [Nominee], seed: u64) -> Self {
        let by_agent: BTreeMap<AgentId, &Nominee> = nominees.iter().map(|nominee| (nominee.agent, nominee)).collect();
        let nominees: Vec<&Nominee> = by_agent.into_values().collect();
        let mut eligible: Vec<usize> =
            (0..nominees.len()).filter(|&i| is_eligible(mesh, nominees[i].agent, nominees.len())).collect();
        eligible.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        let measured = |a: &Nominee, b: &Nominee| mesh.distance(a.agent, b.agent).map(Rtt::as_millis_f64);
        let known: Vec<f64> =
            nominees.iter().flat_map(|a| nominees.iter().filter_map(move |b| measured(a, b))).collect();
        let farthest = known.iter().copied().fold(1.0, f64::max);
        let size = count(known.len().max(1));
        let row = |a: &&Nominee| -> Vec<f64> {
            let to = |b: &&Nominee| if a.agent == b.agent { 0.0 } else { measured(a, b).unwrap_or(farthest) };
            nominees.iter().map(to).collect()
        };
        let distance = nominees.iter().map(row).collect();
        let kinds: Vec<(&str, &str)> = nominees.iter().map(|one| (one.city.as_str(), one.carrier.as_str())).collect();
        let same = CityAndCarrier::new(&kinds, &eligible);
        Self { same, eligible, distance, mean: known.iter().sum::<f64>() / size, nominees }
    }

    pub(super) fn eligible(&self) -> impl Iterator<Item = usize> {
        self.eligible.iter().copied()
    }

    pub(super) fn size(&self) -> usize {
        self.nominees.len()
    }

    pub(super) fn agent(&self, place: usize) -> AgentId {
        self.nominees[place].agent
    }

    /// The indices of the nominees that are among these agents, in the order of identifiers.
    pub(super) fn places(&self, agents: &[AgentId]) -> Vec<usize> {
        (0..self.nominees.len()).filter(|&place| agents.contains(&self.agent(place))).collect()
    }

    /// The mean of all agents' distances to the nearest chosen agent, plus the penalties; in
    /// milliseconds.
    pub(super) fn cost(&self, chosen: &[usize]) -> f64 {
        let nearest = |row: &Vec<f64>| chosen.iter().map(|&i| row[i]).fold(f64::INFINITY, f64::min);
        self.whole(self.distance.iter().map(nearest), chosen)
    }

    /// The cost, computed from `nearest`: each agent's distance to the nearest chosen agent, in the
    /// order of `nominees`.
    pub(super) fn whole(&self, nearest: impl Iterator<Item = f64>, chosen: &[usize]) -> f64 {
        let size = count(self.distance.len().max(1));
        nearest.sum::<f64>() / size + self.mean * self.same.penalty(chosen)
    }
}
