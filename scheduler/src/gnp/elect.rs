//! Elects landmarks by k-medoids over the mesh, with a preference for different cities and
//! carriers.
//!
//! The landmarks minimise the sum of all agents' distances to the nearest landmark (k-medoids;
//! Kaufman and Rousseeuw, "Finding groups in data", 1990, chapter 2: build, then swap). The
//! election minimises this sum because a site's computed location depends most on its nearest
//! landmark. The election does not maximise the landmarks' distances from each other, because doing
//! so would favour outliers (docs/evaluation/accuracy.md).
//!
//! Two penalties, in milliseconds, are added to the mean of the distances to the nearest landmark.
//! The first penalty is for two landmarks in the same city on the same carrier. The second penalty
//! is for a city or carrier without a landmark while another city or carrier has two (section 2.2.1
//! of the paper that the README cites).

pub(super) mod explain;
pub(super) mod improve;
pub(super) mod replace;

use std::collections::{BTreeMap, BTreeSet};

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use crate::model::stats::count;
use crate::model::{AgentId, Rtt};

use super::Mesh;

/// A fixed seed, so that the same measurements always give the same landmarks.
pub const ELECTION_SEED: u64 = 1;
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
/// Maximum number of times that all swaps are tried. A swap replaces one chosen agent with another
/// agent. If no swap lowers the cost, the search ends.
const MOST_PASSES: usize = 20;
/// The penalty for a second landmark in the same city and on the same carrier, as a share of the
/// mean distance between agents.
const SAME_PAIR: f64 = 0.1;
/// The penalty for a city or carrier without a landmark while another city or carrier has two, as a
/// share of the mean distance between agents.
const MISSING: f64 = 0.05;

/// An agent that may become a landmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nominee {
    pub agent: AgentId,
    /// Empty if unknown.
    pub city: String,
    /// Empty if unknown.
    pub carrier: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElectedLandmark {
    pub agent: AgentId,
    /// The reason for the choice, as text for the operator.
    pub reason: String,
}

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

/// Elects `count` landmarks among the nominees, in the order of the greedy choice. An agent that
/// was swapped in takes the index of the agent that it replaced. Equal arguments give equal
/// results, and the order of the nominees does not matter.
pub fn elect(mesh: &Mesh, nominees: &[Nominee], count: usize, seed: u64) -> Result<Vec<ElectedLandmark>, ElectError> {
    let ballot = Nominees::new(mesh, nominees, seed);
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
    let mut cover = CoverCost::new(&ballot);
    let mut chosen = ballot.build(count, &mut cover);
    ballot.swap(&mut chosen, MOST_PASSES, &mut cover);
    Ok(chosen.iter().map(|&i| ballot.elected(i, &chosen)).collect())
}

/// The cost function that an election minimises.
pub(super) trait ElectionCost {
    /// Returns the cost of the agents `chosen`.
    fn of(&mut self, chosen: &[usize]) -> f64;

    /// Returns the cost of the agents `chosen`, which differ from the last recorded choice at most
    /// in the agent at index `_place`.
    fn swapped(&mut self, chosen: &[usize], _place: usize) -> f64 {
        self.of(chosen)
    }

    /// Records the choice `_chosen`. An implementation may then store values that make computing
    /// the costs of swaps faster.
    fn took(&mut self, _chosen: &[usize]) {}
}

pub(super) struct Nominees<'a> {
    /// Sorted by identifier, without duplicates.
    nominees: Vec<&'a Nominee>,
    /// The nominees grouped by city, by carrier, and by city and carrier together.
    kinds: [NomineeKinds; 3],
    /// Indices of the nominees that may be elected, in a random order. The order decides between
    /// choices of equal cost.
    eligible: Vec<usize>,
    /// The distance of each pair of nominees, in milliseconds. An unmeasured pair gets the greatest
    /// measured distance.
    distance: Vec<Vec<f64>>,
    /// Mean distance of the measured pairs, in milliseconds: the unit of the penalties.
    mean: f64,
}

impl<'a> Nominees<'a> {
    pub(super) fn new(mesh: &Mesh, nominees: &'a [Nominee], seed: u64) -> Self {
        let by_agent: BTreeMap<AgentId, &Nominee> = nominees.iter().map(|nominee| (nominee.agent, nominee)).collect();
        let nominees: Vec<&Nominee> = by_agent.into_values().collect();
        let large = nominees.len() >= LARGE_FLEET;
        let mut eligible: Vec<usize> =
            (0..nominees.len()).filter(|&i| !large || mesh.reached_by(nominees[i].agent) >= REACHED_BY).collect();
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
        let kinds = [
            NomineeKinds::new(&nominees, &eligible, |one| (&one.city, "")),
            NomineeKinds::new(&nominees, &eligible, |one| (&one.carrier, "")),
            NomineeKinds::new(&nominees, &eligible, |one| (&one.city, &one.carrier)),
        ];
        Self { kinds, eligible, distance, mean: known.iter().sum::<f64>() / size, nominees }
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

    pub(super) fn elected(&self, place: usize, chosen: &[usize]) -> ElectedLandmark {
        ElectedLandmark { agent: self.agent(place), reason: self.reason(place, chosen) }
    }

    /// Chooses agents one by one, each time the agent that lowers the cost most (greedy).
    fn build(&self, count: usize, cover: &mut CoverCost<'_>) -> Vec<usize> {
        let mut chosen: Vec<usize> = Vec::with_capacity(count);
        while chosen.len() < count {
            let free = self.eligible.iter().copied().filter(|i| !chosen.contains(i));
            let costed = free.map(|i| (cover.with(&[chosen.as_slice(), &[i]].concat()), i));
            let best = costed.min_by(|a, b| a.0.total_cmp(&b.0));
            chosen.push(best.expect("more are eligible than asked for").1);
            cover.took(&chosen);
        }
        chosen
    }

    /// Replaces chosen agents with other agents as long as this lowers the cost. Tries all swaps at
    /// most `most_passes` times.
    pub(super) fn swap(&self, chosen: &mut [usize], most_passes: usize, cost_of: &mut impl ElectionCost) {
        let mut cost = cost_of.of(chosen);
        cost_of.took(chosen);
        for _ in 0..most_passes {
            let before = cost;
            for place in 0..chosen.len() {
                for other in self.eligible() {
                    if chosen.contains(&other) {
                        continue;
                    }
                    let out = std::mem::replace(&mut chosen[place], other);
                    let changed = cost_of.swapped(chosen, place);
                    if changed < cost {
                        cost = changed;
                        cost_of.took(chosen);
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

    /// The mean of all agents' distances to the nearest chosen agent, plus the penalties; in
    /// milliseconds.
    pub(super) fn cost(&self, chosen: &[usize]) -> f64 {
        let nearest = |row: &Vec<f64>| chosen.iter().map(|&i| row[i]).fold(f64::INFINITY, f64::min);
        self.whole(self.distance.iter().map(nearest), chosen)
    }

    /// The cost, computed from `nearest`: each agent's distance to the nearest chosen agent, in the
    /// order of `nominees`.
    fn whole(&self, nearest: impl Iterator<Item = f64>, chosen: &[usize]) -> f64 {
        let size = count(self.distance.len().max(1));
        nearest.sum::<f64>() / size + self.sameness(chosen)
    }

    fn sameness(&self, chosen: &[usize]) -> f64 {
        let [cities, carriers, pairs] = &self.kinds;
        // Number of chosen agents that share both city and carrier with an earlier chosen agent.
        let repeated = count(chosen.len() - pairs.among(chosen));
        let missing = |kinds: &NomineeKinds| count(kinds.all.min(chosen.len()).saturating_sub(kinds.among(chosen)));
        self.mean * (SAME_PAIR * repeated + MISSING * (missing(carriers) + missing(cities)))
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

/// A grouping of the nominees by one property, such as the city.
struct NomineeKinds {
    of: Vec<usize>,
    /// Number of groups with an eligible nominee.
    all: usize,
}

impl NomineeKinds {
    fn new<'a, K: Ord>(nominees: &[&'a Nominee], eligible: &[usize], kind: impl Fn(&'a Nominee) -> K) -> Self {
        let mut numbers: BTreeMap<K, usize> = BTreeMap::new();
        let mut number = |nominee: &&'a Nominee| {
            let next = numbers.len();
            *numbers.entry(kind(nominee)).or_insert(next)
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

/// Stores each agent's distances to its nearest and second nearest chosen agents, so that the cost
/// of a swap needs only one comparison per agent, as in FastPAM (Schubert and Rousseeuw, "Faster
/// k-medoids clustering", 2019).
///
/// Unlike FastPAM, this type does not sum changes in the cost, but sums the same terms in the same
/// order as [`Nominees::cost`], so that both give bit-identical results.
struct CoverCost<'a> {
    ballot: &'a Nominees<'a>,
    nearest: Vec<Nearest>,
}

#[derive(Clone, Copy)]
struct Nearest {
    /// The index of the nearest chosen agent in the list of chosen agents.
    place: usize,
    distance: f64,
    /// The distance to the second nearest chosen agent.
    second: f64,
}

impl<'a> CoverCost<'a> {
    fn new(ballot: &'a Nominees<'a>) -> Self {
        let none = Nearest { place: usize::MAX, distance: f64::INFINITY, second: f64::INFINITY };
        Self { ballot, nearest: vec![none; ballot.size()] }
    }

    /// The cost of `chosen`, which is the last recorded choice plus one agent at the end.
    fn with(&self, chosen: &[usize]) -> f64 {
        self.with_another(chosen, chosen.len() - 1)
    }

    /// The cost of `chosen`, which differs from the last recorded choice only in the agent at
    /// index `place`.
    fn with_another(&self, chosen: &[usize], place: usize) -> f64 {
        let others = |near: &Nearest| if near.place == place { near.second } else { near.distance };
        let to_it = &self.ballot.distance[chosen[place]];
        self.ballot.whole(self.nearest.iter().zip(to_it).map(|(near, distance)| others(near).min(*distance)), chosen)
    }
}

impl ElectionCost for CoverCost<'_> {
    fn of(&mut self, chosen: &[usize]) -> f64 {
        self.ballot.cost(chosen)
    }

    fn swapped(&mut self, chosen: &[usize], place: usize) -> f64 {
        self.with_another(chosen, place)
    }

    fn took(&mut self, chosen: &[usize]) {
        for (near, row) in self.nearest.iter_mut().zip(&self.ballot.distance) {
            *near = Nearest { place: usize::MAX, distance: f64::INFINITY, second: f64::INFINITY };
            for (place, &one) in chosen.iter().enumerate() {
                if row[one] < near.distance {
                    *near = Nearest { place, distance: row[one], second: near.distance };
                } else if row[one] < near.second {
                    near.second = row[one];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::Rng;

    use super::super::fixture::{agent, line, nominees, rtt};
    use super::*;

    fn agents(elected: &[ElectedLandmark]) -> BTreeSet<i64> {
        elected.iter().map(|elected| elected.agent.get()).collect()
    }

    #[test]
    fn the_middles_of_groups_are_elected_and_not_the_outliers() {
        let mesh = line(&[0.0, 10.0, 20.0, 500.0, 510.0, 520.0], 1.0);
        let elected = elect(&mesh, &nominees(&[("", ""); 6]), 2, 1).unwrap();
        assert_eq!(agents(&elected), BTreeSet::from([2, 5]));
        assert_eq!(elected[0].reason, "central to 2 agents around it");
    }

    #[test]
    fn another_carrier_in_the_same_place_is_preferred_to_the_same_one() {
        let mesh = line(&[0.0, 0.0, 0.0, 400.0, 400.0], 1.0);
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
        // Only agents 1 to 4 can be reached.
        for (prober, target) in (1..=10).flat_map(|a| (1..=4).map(move |b| (a, b))) {
            mesh.insert(agent(prober), agent(target), rtt(f64::from(prober + target)));
        }
        let fleet = nominees(&[("", ""); 10]);
        assert_eq!(agents(&elect(&mesh, &fleet, 4, 1).unwrap()), BTreeSet::from([1, 2, 3, 4]));
        assert_eq!(
            elect(&mesh, &fleet, 5, 1).unwrap_err().to_string(),
            "an election of 5 landmarks needs as many agents that two others reached, but only 4 of 10 were"
        );
    }

    #[test]
    fn a_small_fleet_elects_whoever_is_there() {
        let fleet = nominees(&[("Harbin", "CERNET")]);
        assert_eq!(elect(&Mesh::new(), &fleet, 1, 1).unwrap().len(), 1);
        assert_eq!(elect(&Mesh::new(), &fleet, 2, 1), Err(ElectError::TooFewAgents { asked: 2, there: 1 }));
        assert_eq!(elect(&Mesh::new(), &fleet, 0, 1), Err(ElectError::NoneAsked));
    }

    /// A random fleet with unmeasured pairs and many equal distances.
    fn at_random(agents: u32, seed: u64) -> (Mesh, Vec<Nominee>) {
        let mut draws = ChaCha8Rng::seed_from_u64(seed);
        let mut draw = |below: u32| draws.next_u32() % below;
        let mut mesh = Mesh::new();
        for a in 0..agents {
            for b in (0..agents).filter(|b| *b != a) {
                let millis = f64::from(1 + draw(40)) + f64::from(draw(2)) * f64::from(draw(1000)) / 1000.0;
                if draw(5) > 0 {
                    mesh.insert(agent(a), agent(b), rtt(millis));
                }
            }
        }
        let name = |number: u32| if number == 0 { String::new() } else { number.to_string() };
        let nominee = |a: u32| Nominee { agent: agent(a), city: name(draw(6)), carrier: name(draw(4)) };
        (mesh, (0..agents).map(nominee).collect())
    }

    /// The cost as defined, computed from scratch each time.
    struct PlainCost<'a>(&'a Nominees<'a>);

    impl PlainCost<'_> {
        fn missing<'b>(&'b self, chosen: &[usize], kind: impl Fn(&'b Nominee) -> &'b str) -> f64 {
            let kinds = |of: &[usize]| of.iter().map(|&i| kind(self.0.nominees[i])).collect::<BTreeSet<&str>>().len();
            let most = kinds(&self.0.eligible).min(chosen.len());
            f64::from(u32::try_from(most.saturating_sub(kinds(chosen))).unwrap())
        }
    }

    impl ElectionCost for PlainCost<'_> {
        fn of(&mut self, chosen: &[usize]) -> f64 {
            let Nominees { nominees, distance, mean, .. } = self.0;
            let pair = |&i: &usize| format!("{}\n{}", nominees[i].city, nominees[i].carrier);
            let pairs: BTreeSet<String> = chosen.iter().map(pair).collect();
            let repeated = f64::from(u32::try_from(chosen.len() - pairs.len()).unwrap());
            let missing = self.missing(chosen, |one| &one.carrier) + self.missing(chosen, |one| &one.city);
            let nearest = |row: &Vec<f64>| chosen.iter().map(|&i| row[i]).fold(f64::INFINITY, f64::min);
            let size = f64::from(u32::try_from(distance.len()).unwrap());
            distance.iter().map(nearest).sum::<f64>() / size + mean * (SAME_PAIR * repeated + MISSING * missing)
        }
    }

    /// Runs the election with [`PlainCost`].
    fn plainly(ballot: &Nominees<'_>, count: usize) -> Vec<usize> {
        let (mut plain, mut chosen) = (PlainCost(ballot), Vec::new());
        while chosen.len() < count {
            let free = ballot.eligible().filter(|i| !chosen.contains(i));
            let costed = free.map(|i| (plain.of(&[chosen.as_slice(), &[i]].concat()), i));
            chosen.push(costed.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap().1);
        }
        ballot.swap(&mut chosen, MOST_PASSES, &mut plain);
        chosen
    }

    #[test]
    fn a_swap_costs_to_the_last_digit_what_its_outcome_does() {
        let mut swaps = 0;
        for seed in 0..60 {
            let agents = 3 + u32::try_from(seed).unwrap();
            let (mesh, fleet) = at_random(agents, seed);
            let ballot = Nominees::new(&mesh, &fleet, seed);
            let count = (1 + usize::try_from(seed % 11).unwrap()).min(ballot.eligible.len());
            let (mut plain, mut cover) = (PlainCost(&ballot), CoverCost::new(&ballot));
            let mut chosen: Vec<usize> = ballot.eligible().take(count).collect();
            cover.took(&chosen);
            for (place, other) in (0..count).flat_map(|place| ballot.eligible().map(move |other| (place, other))) {
                if chosen.contains(&other) {
                    continue;
                }
                let out = std::mem::replace(&mut chosen[place], other);
                let (swapped, cost) = (cover.swapped(&chosen, place), plain.of(&chosen));
                assert_eq!(swapped.to_bits(), cost.to_bits(), "seed {seed}: {swapped} {cost}");
                assert_eq!(ballot.cost(&chosen).to_bits(), cost.to_bits(), "seed {seed}");
                chosen[place] = out;
                swaps += 1;
            }
            let elected: Vec<AgentId> =
                elect(&mesh, &fleet, count, seed).unwrap().iter().map(|one| one.agent).collect();
            let before: Vec<AgentId> = plainly(&ballot, count).into_iter().map(|place| ballot.agent(place)).collect();
            assert_eq!(elected, before, "seed {seed}");
        }
        assert!(swaps > 1000, "{swaps}");
    }

    #[test]
    fn the_order_of_the_nominees_changes_nothing() {
        let mesh = line(&[30.0, 90.0, 120.0, 130.0, 300.0, 310.0, 440.0, 470.0, 480.0, 600.0, 610.0, 750.0], 1.0);
        let mut fleet = nominees(&[("", ""); 12]);
        let before = elect(&mesh, &fleet, 4, 8).unwrap();
        fleet.reverse();
        assert_eq!(before, elect(&mesh, &fleet, 4, 8).unwrap());
    }
}
