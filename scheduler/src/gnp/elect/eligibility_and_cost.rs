//! Decides which agents may become landmarks and how many landmarks there may be, and computes the
//! cost of electing some of the agents: distances, and penalties for several landmarks in one city
//! or on one carrier while another has none.

use std::collections::{BTreeMap, BTreeSet};

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use crate::gnp::Mesh;
use crate::model::stats::count;
use crate::model::{AgentId, Rtt};

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

/// The penalty for a second landmark in the same city and on the same carrier, as a share of the
/// mean distance between agents.
pub(super) const SAME_PAIR: f64 = 0.1;
/// The penalty for a city or carrier without a landmark while another city or carrier has two, as a
/// share of the mean distance between agents.
pub(super) const MISSING: f64 = 0.05;

/// The nominees grouped by city, by carrier, and by city and carrier together.
struct CityAndCarrier([NomineeKinds; 3]);

impl CityAndCarrier {
    /// `nominees` contains the city and the carrier of each nominee.
    fn new(nominees: &[(&str, &str)], eligible: &[usize]) -> Self {
        let cities: Vec<&str> = nominees.iter().map(|(city, _)| *city).collect();
        let carriers: Vec<&str> = nominees.iter().map(|(_, carrier)| *carrier).collect();
        Self([
            NomineeKinds::new(&cities, eligible),
            NomineeKinds::new(&carriers, eligible),
            NomineeKinds::new(nominees, eligible),
        ])
    }

    /// The penalties for the agents `chosen`, as a share of the mean distance between agents.
    fn penalty(&self, chosen: &[usize]) -> f64 {
        let [cities, carriers, pairs] = &self.0;
        // Number of chosen agents that share both city and carrier with an earlier chosen agent.
        let repeated = count(chosen.len() - pairs.among(chosen));
        let missing = |kinds: &NomineeKinds| count(kinds.all.min(chosen.len()).saturating_sub(kinds.among(chosen)));
        SAME_PAIR * repeated + MISSING * (missing(carriers) + missing(cities))
    }
}

/// A grouping of the nominees by one property, such as the city.
struct NomineeKinds {
    of: Vec<usize>,
    /// Number of groups with an eligible nominee.
    all: usize,
}

impl NomineeKinds {
    fn new<K: Ord>(nominees: &[K], eligible: &[usize]) -> Self {
        let mut numbers: BTreeMap<&K, usize> = BTreeMap::new();
        let mut number = |kind| {
            let next = numbers.len();
            *numbers.entry(kind).or_insert(next)
        };
        let of: Vec<usize> = nominees.iter().map(&mut number).collect();
        let all = eligible.iter().map(|&i| of[i]).collect::<BTreeSet<usize>>().len();
        Self { of, all }
    }

    /// The number of groups to which the chosen nominees belong. Comparing all pairs of chosen
    /// nominees is fastest, because few nominees are chosen.
    fn among(&self, chosen: &[usize]) -> usize {
        let is_first =
            |(place, one): &(usize, &usize)| chosen[..*place].iter().all(|other| self.of[*other] != self.of[**one]);
        chosen.iter().enumerate().filter(is_first).count()
    }
}

/// Minimum number of landmarks to elect. With only two landmarks, a host's position and its mirror
/// image would fit equally well.
pub const FEWEST_ELECTED: u32 = 3;
/// A fleet of at most this many connected agents needs no landmarks. Without landmarks, every agent
/// measures every site.
pub const SMALL_FLEET: usize = 9;
/// In fleets of at least this size, a landmark must have been measured by at least [`REACHED_BY`]
/// other agents.
const LARGE_FLEET: usize = SMALL_FLEET + 1;
/// Minimum number of other agents that must have measured a landmark in a large fleet.
const REACHED_BY: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ElectError {
    #[error("at least 1 landmark must be requested")]
    NoneAsked,
    #[error("an election of {asked} landmarks needs as many agents, but there are {there}")]
    TooFewAgents { asked: usize, there: usize },
    #[error(
        "an election of {asked} landmarks needs as many agents that two others reached, but only {reached} of {there} \
         were"
    )]
    TooFewReached {
        asked: usize,
        /// Number of agents that at least two other agents measured.
        reached: usize,
        there: usize,
    },
}

/// Whether an agent of a fleet of this size may become a landmark.
fn is_eligible(mesh: &Mesh, agent: AgentId, fleet: usize) -> bool {
    fleet < LARGE_FLEET || mesh.reached_by(agent) >= REACHED_BY
}

/// Checks that as many of the eligible agents can be elected as were requested.
pub(super) const fn check(asked: usize, reached: usize, there: usize) -> Result<(), ElectError> {
    if asked == 0 {
        return Err(ElectError::NoneAsked);
    }
    if asked > there {
        return Err(ElectError::TooFewAgents { asked, there });
    }
    if asked > reached {
        return Err(ElectError::TooFewReached { asked, reached, there });
    }
    Ok(())
}
