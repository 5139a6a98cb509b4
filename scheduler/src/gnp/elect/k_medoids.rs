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

use crate::gnp::Mesh;

use super::eligibility::{ElectError, check};
use super::nominees::{Nominee, Nominees};
use super::reason::ElectedLandmark;

/// A fixed seed, so that the same measurements always give the same landmarks.
pub const ELECTION_SEED: u64 = 1;
/// Maximum number of times that all swaps are tried. A swap replaces one chosen agent with another
/// agent. If no swap lowers the cost, the search ends.
const MOST_PASSES: usize = 20;

/// Elects `count` landmarks among the nominees, in the order of the greedy choice. An agent that
/// was swapped in takes the index of the agent that it replaced. Equal arguments give equal
/// results, and the order of the nominees does not matter.
pub fn elect(mesh: &Mesh, nominees: &[Nominee], count: usize, seed: u64) -> Result<Vec<ElectedLandmark>, ElectError> {
    let ballot = Nominees::new(mesh, nominees, seed);
    check(count, ballot.eligible.len(), ballot.nominees.len())?;
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

impl Nominees<'_> {
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
    use std::collections::BTreeSet;

    use rand::rngs::ChaCha8Rng;
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::gnp::elect::city_and_carrier::{MISSING, SAME_PAIR};
    use crate::gnp::fixture::{agent, line, nominees, rtt};
    use crate::model::AgentId;

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
