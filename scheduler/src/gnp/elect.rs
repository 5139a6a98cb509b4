//! Chooses landmarks: k-medoids over the agents' measured mesh, with different cities and carriers.
//!
//! The landmarks are the agents to which all agents are nearest in sum (k-medoids; Kaufman and Rousseeuw, "Finding
//! groups in data", 1990, chapter 2: build, then swap), because a site is judged by the landmark nearest to it.
//! Choosing the agents farthest from each other instead takes the outliers: a trap (docs/gnp.md, 7). Two landmarks of one
//! city and carrier, or of one carrier or one city while another has none, cost as much as agents moved away from their
//! landmark (the paper 2.2.1: different cities, different carriers).

use std::collections::{BTreeMap, BTreeSet};

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::model::AgentId;

use super::{Mesh, millis};

/// Fleets of this size and more have landmarks that two others have reached.
const LARGE_FLEET: usize = 10;
/// Others that must have reached a landmark of a large fleet.
const REACHED_BY: usize = 2;
/// Swap passes at most; each ends when no swap helps.
const MOST_PASSES: usize = 20;
/// What a second landmark of one city and carrier costs, as a part of the mean distance to a landmark, per agent.
const SAME_PAIR: f64 = 0.1;
/// What a city or carrier without a landmark costs, in the same unit, when another has two.
const MISSING: f64 = 0.05;

/// An agent that may become a landmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nominee {
    /// The agent.
    pub agent: AgentId,
    /// Where it is; empty when unknown.
    pub city: String,
    /// Whose network it is on; empty when unknown.
    pub carrier: String,
}

/// A chosen landmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elected {
    /// The agent.
    pub agent: AgentId,
    /// Why, in words for the operator.
    pub reason: String,
}

/// Why no election was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ElectError {
    /// None asked.
    #[error("at least 1 landmark must be asked for")]
    NoneAsked,
    /// More landmarks asked than there are agents.
    #[error("{asked} landmarks were asked for, there are {there} agents")]
    TooFewAgents {
        /// Landmarks asked.
        asked: usize,
        /// Agents nominated.
        there: usize,
    },
    /// More landmarks asked than there are agents that others reach.
    #[error("{asked} landmarks were asked for, only {reached} of {there} agents were reached by two others")]
    TooFewReached {
        /// Landmarks asked.
        asked: usize,
        /// Agents that two others reached.
        reached: usize,
        /// Agents nominated.
        there: usize,
    },
}

/// Elects `count` landmarks among the nominees by the mesh, in the order in which they matter. The same arguments, in
/// any order of the nominees, give the same landmarks.
///
/// # Errors
/// When none or more are asked for than may be landmarks.
pub fn elect(mesh: &Mesh, nominees: &[Nominee], count: usize, seed: u64) -> Result<Vec<Elected>, ElectError> {
    let ballot = Ballot::new(mesh, nominees, seed);
    let there = ballot.nominees.len();
    if count == 0 {
        return Err(ElectError::NoneAsked);
    }
    if count > there {
        return Err(ElectError::TooFewAgents { asked: count, there });
    }
    if count > ballot.eligible.len() {
        return Err(ElectError::TooFewReached { asked: count, reached: ballot.eligible.len(), there });
    }
    let mut chosen = ballot.build(count);
    ballot.swap(&mut chosen, MOST_PASSES, |chosen| ballot.cost(chosen));
    Ok(chosen.iter().map(|&i| ballot.elected(i, &chosen)).collect())
}

pub(super) struct Ballot<'a> {
    /// By identifier, each once.
    nominees: Vec<&'a Nominee>,
    /// Indices of those that may be elected, shuffled: equal choices fall to the seed.
    eligible: Vec<usize>,
    /// Milliseconds; a pair nobody measured has the distance of the farthest one.
    distance: Vec<Vec<f64>>,
    /// Mean distance, milliseconds: the unit of the costs of sameness.
    mean: f64,
}

impl<'a> Ballot<'a> {
    pub(super) fn new(mesh: &Mesh, nominees: &'a [Nominee], seed: u64) -> Self {
        let by_agent: BTreeMap<AgentId, &Nominee> = nominees.iter().map(|nominee| (nominee.agent, nominee)).collect();
        let nominees: Vec<&Nominee> = by_agent.into_values().collect();
        let large = nominees.len() >= LARGE_FLEET;
        let mut eligible: Vec<usize> =
            (0..nominees.len()).filter(|&i| !large || mesh.reached_by(nominees[i].agent) >= REACHED_BY).collect();
        eligible.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        let measured = |a: &Nominee, b: &Nominee| mesh.distance(a.agent, b.agent).map(millis);
        let known: Vec<f64> =
            nominees.iter().flat_map(|a| nominees.iter().filter_map(move |b| measured(a, b))).collect();
        let farthest = known.iter().copied().fold(1.0, f64::max);
        let size = f64::from(u32::try_from(known.len().max(1)).unwrap_or(u32::MAX));
        let row = |a: &&Nominee| -> Vec<f64> {
            let to = |b: &&Nominee| if a.agent == b.agent { 0.0 } else { measured(a, b).unwrap_or(farthest) };
            nominees.iter().map(to).collect()
        };
        let distance = nominees.iter().map(row).collect();
        Self { eligible, distance, mean: known.iter().sum::<f64>() / size, nominees }
    }

    /// Who may be elected, by place on the ballot.
    pub(super) fn eligible(&self) -> impl Iterator<Item = usize> {
        self.eligible.iter().copied()
    }

    /// How many places it has.
    pub(super) fn size(&self) -> usize {
        self.nominees.len()
    }

    /// Who has this place on the ballot.
    pub(super) fn agent(&self, place: usize) -> AgentId {
        self.nominees[place].agent
    }

    /// The places of these agents, as far as they are on the ballot, by identifier.
    pub(super) fn places(&self, agents: &[AgentId]) -> Vec<usize> {
        (0..self.nominees.len()).filter(|&place| agents.contains(&self.agent(place))).collect()
    }

    /// One of the chosen, with the reason.
    pub(super) fn elected(&self, place: usize, chosen: &[usize]) -> Elected {
        Elected { agent: self.agent(place), reason: self.reason(place, chosen) }
    }

    /// Takes, one after another, the agent that lowers the cost most.
    fn build(&self, count: usize) -> Vec<usize> {
        let mut chosen: Vec<usize> = Vec::with_capacity(count);
        while chosen.len() < count {
            let free = self.eligible.iter().copied().filter(|i| !chosen.contains(i));
            let costed = free.map(|i| (self.cost(&[chosen.as_slice(), &[i]].concat()), i));
            let best = costed.min_by(|a, b| a.0.total_cmp(&b.0));
            chosen.push(best.expect("more are eligible than asked for").1);
        }
        chosen
    }

    /// Swaps a chosen agent for another while that lowers `cost`, in so many passes at most.
    pub(super) fn swap(&self, chosen: &mut [usize], most_passes: usize, cost_of: impl Fn(&[usize]) -> f64) {
        let mut cost = cost_of(chosen);
        for _ in 0..most_passes {
            let before = cost;
            for place in 0..chosen.len() {
                for other in self.eligible() {
                    if chosen.contains(&other) {
                        continue;
                    }
                    let out = std::mem::replace(&mut chosen[place], other);
                    let changed = cost_of(chosen);
                    if changed < cost {
                        cost = changed;
                    } else {
                        chosen[place] = out;
                    }
                }
            }
            if cost >= before {
                return;
            }
        }
    }

    /// Mean distance to the nearest chosen, and what sameness costs, milliseconds.
    pub(super) fn cost(&self, chosen: &[usize]) -> f64 {
        let nearest = |row: &Vec<f64>| chosen.iter().map(|&i| row[i]).fold(f64::INFINITY, f64::min);
        let size = f64::from(u32::try_from(self.distance.len().max(1)).unwrap_or(u32::MAX));
        self.distance.iter().map(nearest).sum::<f64>() / size + self.sameness(chosen)
    }

    fn sameness(&self, chosen: &[usize]) -> f64 {
        let pairs = self.repeated(chosen, |nominee| format!("{}\n{}", nominee.city, nominee.carrier));
        let carriers = self.missing(chosen, |nominee| &nominee.carrier);
        let cities = self.missing(chosen, |nominee| &nominee.city);
        self.mean * (SAME_PAIR * pairs + MISSING * (carriers + cities))
    }

    /// Chosen agents beyond the first of each kind.
    fn repeated(&self, chosen: &[usize], kind: impl Fn(&Nominee) -> String) -> f64 {
        let kinds: BTreeSet<String> = chosen.iter().map(|&i| kind(self.nominees[i])).collect();
        f64::from(u32::try_from(chosen.len() - kinds.len()).unwrap_or(u32::MAX))
    }

    /// Kinds that could have a landmark and have none.
    fn missing<'b>(&'b self, chosen: &[usize], kind: impl Fn(&'b Nominee) -> &'b str) -> f64 {
        let all: BTreeSet<&str> = self.eligible.iter().map(|&i| kind(self.nominees[i])).collect();
        let have: BTreeSet<&str> = chosen.iter().map(|&i| kind(self.nominees[i])).collect();
        let most = all.len().min(chosen.len());
        f64::from(u32::try_from(most.saturating_sub(have.len())).unwrap_or(u32::MAX))
    }

    fn reason(&self, elected: usize, chosen: &[usize]) -> String {
        let nearest_is = |row: &Vec<f64>| {
            chosen.iter().copied().min_by(|&a, &b| row[a].total_cmp(&row[b])).is_some_and(|nearest| nearest == elected)
        };
        let around = (0..self.distance.len()).filter(|i| !chosen.contains(i) && nearest_is(&self.distance[*i])).count();
        let central = match around {
            0 => "no other agent is nearer to it than to another landmark".to_owned(),
            1 => "central to 1 agent beside it".to_owned(),
            more => format!("central to {more} agents around it"),
        };
        match self.distinction(elected) {
            Some(distinction) => format!("{central}; {distinction}"),
            None => central,
        }
    }

    /// What sets it apart among all nominees.
    fn distinction(&self, elected: usize) -> Option<String> {
        let it = self.nominees[elected];
        let alone = |same: &dyn Fn(&Nominee) -> bool| self.nominees.iter().filter(|other| same(other)).count() == 1;
        if it.city.is_empty() || it.carrier.is_empty() || self.nominees.len() == 1 {
            return None;
        }
        if alone(&|other| other.carrier == it.carrier && other.city == it.city) {
            return Some(format!("the only one on {} in {}", it.carrier, it.city));
        }
        Some(format!("on {} in {}", it.carrier, it.city))
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Rtt;

    use super::*;

    /// Agents on a line, 10 ms a place, everyone measured by everyone.
    fn line(places: &[u32]) -> Mesh {
        let mut mesh = Mesh::new();
        for (i, a) in (1..).zip(places) {
            for (j, b) in (1..).zip(places) {
                let rtt = Rtt::try_from_millis_f64(f64::from(a.abs_diff(*b)) * 10.0 + 1.0).unwrap();
                mesh.insert(AgentId::new(i), AgentId::new(j), rtt);
            }
        }
        mesh
    }

    fn nominees(of: &[(&str, &str)]) -> Vec<Nominee> {
        let nominee = |(i, (city, carrier)): (i64, &(&str, &str))| Nominee {
            agent: AgentId::new(i),
            city: (*city).to_owned(),
            carrier: (*carrier).to_owned(),
        };
        (1..).zip(of).map(nominee).collect()
    }

    fn agents(elected: &[Elected]) -> BTreeSet<i64> {
        elected.iter().map(|elected| elected.agent.get()).collect()
    }

    #[test]
    fn the_middles_of_groups_are_elected_and_not_the_outliers() {
        let mesh = line(&[0, 1, 2, 50, 51, 52]);
        let elected = elect(&mesh, &nominees(&[("", ""); 6]), 2, 1).unwrap();
        assert_eq!(agents(&elected), BTreeSet::from([2, 5]));
        assert_eq!(elected[0].reason, "central to 2 agents around it");
    }

    #[test]
    fn another_carrier_in_the_same_place_is_preferred_to_the_same_one() {
        let mesh = line(&[0, 0, 0, 40, 40]);
        let fleet = nominees(&[
            ("Beijing", "Telecom"),
            ("Beijing", "Telecom"),
            ("Beijing", "Unicom"),
            ("Harbin", "CERNET"),
            ("Harbin", "Telecom"),
        ]);
        for seed in 0..20 {
            let elected = elect(&mesh, &fleet, 3, seed).unwrap();
            let carriers: BTreeSet<&str> = elected
                .iter()
                .map(|elected| fleet.iter().find(|nominee| nominee.agent == elected.agent).unwrap().carrier.as_str())
                .collect();
            assert_eq!(carriers.len(), 3, "{elected:?}");
            let harbin = elected.iter().find(|elected| elected.agent == AgentId::new(4)).unwrap();
            assert!(harbin.reason.ends_with("the only one on CERNET in Harbin"), "{}", harbin.reason);
        }
    }

    #[test]
    fn in_a_large_fleet_only_agents_that_two_others_reached_are_elected() {
        let mut mesh = Mesh::new();
        // Agents 1 to 4 can be reached; the other six sit behind address translation.
        for (prober, target) in (1..=10).flat_map(|a| (1..=4).map(move |b| (a, b))) {
            let millis = f64::from(u32::try_from(prober + target).unwrap());
            mesh.insert(AgentId::new(prober), AgentId::new(target), Rtt::try_from_millis_f64(millis).unwrap());
        }
        let fleet = nominees(&[("", ""); 10]);
        assert_eq!(agents(&elect(&mesh, &fleet, 4, 1).unwrap()), BTreeSet::from([1, 2, 3, 4]));
        assert_eq!(
            elect(&mesh, &fleet, 5, 1).unwrap_err().to_string(),
            "5 landmarks were asked for, only 4 of 10 agents were reached by two others"
        );
    }

    #[test]
    fn a_small_fleet_elects_whoever_is_there() {
        let fleet = nominees(&[("Harbin", "CERNET")]);
        assert_eq!(elect(&Mesh::new(), &fleet, 1, 1).unwrap().len(), 1);
        assert_eq!(elect(&Mesh::new(), &fleet, 2, 1), Err(ElectError::TooFewAgents { asked: 2, there: 1 }));
        assert_eq!(elect(&Mesh::new(), &fleet, 0, 1), Err(ElectError::NoneAsked));
    }

    #[test]
    fn the_order_of_the_nominees_changes_nothing() {
        let mesh = line(&[3, 9, 12, 13, 30, 31, 44, 47, 48, 60, 61, 75]);
        let mut fleet = nominees(&[("", ""); 12]);
        let before = elect(&mesh, &fleet, 4, 8).unwrap();
        fleet.reverse();
        assert_eq!(before, elect(&mesh, &fleet, 4, 8).unwrap());
    }
}
