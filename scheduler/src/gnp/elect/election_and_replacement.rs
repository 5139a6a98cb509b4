//! Elects landmarks by k-medoids, improves the elected set by the errors of held-out agents,
//! replaces a lost landmark, and gives the reason for each landmark as text for the operator.
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
//!
//! A held-out agent is a non-landmark agent that is located like a site. The held-out agent's
//! predicted distances to other agents are compared with the measured distances. The cost of a set
//! of landmarks is the error of these predictions plus the weighted k-medoids cost. Minimising the
//! error alone would choose landmarks far from all agents, and then few sites would be near a
//! landmark. A landmark near a site is useful, because its distance to the site is measured, not
//! predicted.

use crate::gnp::Mesh;
use crate::gnp::measured_distances::Measured;
use crate::gnp::refined::{HeldOut, MOST_AGENTS, Prepared};
use crate::model::AgentId;
use crate::model::stats::mean;

use super::eligibility_and_cost::{ElectError, Nominee, Nominees, check};

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
trait ElectionCost {
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
    fn swap(&self, chosen: &mut [usize], most_passes: usize, cost_of: &mut impl ElectionCost) {
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

/// Maximum number of times that all swaps of a landmark for another agent are tried. In the second
/// pass, some swaps lower the cost that did not lower it in the first pass. In a third pass, hardly
/// any swap would lower the cost.
const MOST_HELD_OUT_PASSES: usize = 2;
/// The weight of the k-medoids cost relative to the prediction error. The k-medoids cost is divided
/// by the mean distance of an agent to the nearest other agent, so that the weight has no unit.
const NEARNESS: f64 = 0.06;

/// Elects as [`elect`] does, then improves the choice. The returned landmarks are in no meaningful
/// order.
pub fn elect_held_out(
    mesh: &Mesh,
    nominees: &[Nominee],
    count: usize,
    seed: u64,
) -> Result<Vec<ElectedLandmark>, ElectError> {
    let elected = elect(mesh, nominees, count, seed)?;
    let landmarks: Vec<AgentId> = elected.iter().map(|elected| elected.agent).collect();
    if nominees.len() > MOST_AGENTS {
        return Ok(elected);
    }
    // If the mesh does not connect the landmarks, no agent can be held out.
    let Ok(measured) = Measured::joined(mesh, &landmarks) else { return Ok(elected) };
    let Some(prepared) = Prepared::new(&measured, landmarks.len(), seed) else { return Ok(elected) };
    let Some(held_out) = prepared.held_out() else { return Ok(elected) };
    let ballot = Nominees::new(mesh, nominees, seed);
    let mut contest = HeldOutCost::new(&ballot, held_out, &measured);
    let mut chosen: Vec<usize> = ballot.places(&landmarks);
    ballot.swap(&mut chosen, MOST_HELD_OUT_PASSES, &mut contest);
    Ok(chosen.iter().map(|&place| ballot.elected(place, &chosen)).collect())
}

struct HeldOutCost<'a> {
    ballot: &'a Nominees<'a>,
    held_out: HeldOut<'a>,
    /// The index of each nominee in [`Measured::agents`]; `None` if the nominee is not among them.
    measured: Vec<Option<usize>>,
    /// Mean of the agents' distances to the nearest other agent, in milliseconds.
    nearest: f64,
}

impl<'a> HeldOutCost<'a> {
    fn new(ballot: &'a Nominees<'a>, held_out: HeldOut<'a>, measured: &Measured) -> Self {
        let place = |agent: AgentId| measured.agents.iter().position(|other| *other == agent);
        let nearest: Vec<f64> = measured
            .rows
            .iter()
            .map(|row| row.iter().map(|&(_, distance)| distance).fold(f64::INFINITY, f64::min))
            .filter(|distance| distance.is_finite())
            .collect();
        Self {
            measured: (0..ballot.size()).map(|i| place(ballot.agent(i))).collect(),
            ballot,
            held_out,
            nearest: mean(&nearest).unwrap_or(0.0).max(f64::MIN_POSITIVE),
        }
    }
}

impl ElectionCost for HeldOutCost<'_> {
    fn of(&mut self, chosen: &[usize]) -> f64 {
        // An agent that the mesh does not connect to the other agents cannot be a landmark, because
        // its measurements do not help to locate a held-out agent.
        let landmarks: Option<Vec<usize>> = chosen.iter().map(|&i| self.measured[i]).collect();
        let Some(landmarks) = landmarks else { return f64::INFINITY };
        let error = self.held_out.error(&landmarks).unwrap_or(f64::INFINITY);
        error + NEARNESS * self.ballot.cost(chosen) / self.nearest
    }
}

/// Elects the agent of `candidates` that, together with the landmarks `kept`, has the lowest cost.
/// Returns `None` if none of these agents is eligible. `fleet` contains the agents of `kept` and
/// `candidates`. Kept landmarks need not be reachable.
pub fn replace_landmark(
    mesh: &Mesh,
    fleet: &[Nominee],
    kept: &[AgentId],
    candidates: &[AgentId],
    seed: u64,
) -> Option<ElectedLandmark> {
    let ballot = Nominees::new(mesh, fleet, seed);
    let mut chosen = ballot.places(kept);
    let open = ballot.eligible().filter(|&place| {
        let agent = ballot.agent(place);
        candidates.contains(&agent) && !kept.contains(&agent) && mesh.reached_by(agent) > 0
    });
    let costed = open.map(|place| (ballot.cost(&[chosen.as_slice(), &[place]].concat()), place));
    let (_, best) = costed.min_by(|a, b| a.0.total_cmp(&b.0))?;
    chosen.push(best);
    Some(ballot.elected(best, &chosen))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElectedLandmark {
    pub agent: AgentId,
    /// The reason for the choice, as text for the operator.
    pub reason: String,
}

impl Nominees<'_> {
    fn elected(&self, place: usize, chosen: &[usize]) -> ElectedLandmark {
        ElectedLandmark { agent: self.agent(place), reason: self.reason(place, chosen) }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::ChaCha8Rng;
    use rand::{Rng, SeedableRng};

    use crate::gnp::elect::eligibility_and_cost::{MISSING, SAME_PAIR};
    use crate::gnp::fixture::{agent, line, nominees, rtt};
    use crate::model::AgentId;

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

    /// Three groups of four agents. Neighbouring groups are 60 ms apart, and all agents measured
    /// each other.
    fn groups() -> (Mesh, Vec<Nominee>) {
        let mut mesh = Mesh::new();
        for a in 0..12_i64 {
            for b in 0..12_i64 {
                let apart = f64::from(u32::try_from((a / 4).abs_diff(b / 4)).unwrap()) * 60.0;
                let odd = f64::from(u32::try_from((a * 7 + b * 7) % 5).unwrap());
                mesh.insert(agent(a + 1), agent(b + 1), rtt(3.0 + apart + odd));
            }
        }
        (mesh, nominees(&[("", ""); 12]))
    }

    #[test]
    fn every_group_keeps_a_landmark_and_the_order_of_the_nominees_changes_nothing() {
        let (mesh, mut nominees) = groups();
        let elected = elect_held_out(&mesh, &nominees, 5, 3).unwrap();
        assert_eq!(elected.len(), 5);
        assert_eq!(agents(&elected).len(), 5);
        let of: BTreeSet<i64> = agents(&elected).iter().map(|agent| (agent - 1) / 4).collect();
        assert_eq!(of, BTreeSet::from([0, 1, 2]));
        nominees.reverse();
        assert_eq!(elected, elect_held_out(&mesh, &nominees, 5, 3).unwrap());
    }

    #[test]
    fn where_nobody_can_be_held_out_k_medoids_decides_and_its_refusals_stand() {
        let (mesh, nominees) = groups();
        assert_eq!(elect_held_out(&mesh, &nominees, 13, 3), Err(ElectError::TooFewAgents { asked: 13, there: 12 }));
        assert_eq!(elect_held_out(&mesh, &nominees, 12, 3).unwrap().len(), 12);
        let lone = &nominees[..1];
        assert_eq!(elect_held_out(&Mesh::new(), lone, 1, 3), elect(&Mesh::new(), lone, 1, 3));
    }

    /// Two groups of three agents on a line; all agents measured each other.
    fn fleet() -> (Mesh, Vec<Nominee>) {
        (line(&[0.0, 2.0, 4.0, 60.0, 62.0, 64.0], 0.0), nominees(&[("", ""); 6]))
    }

    #[test]
    fn the_replacement_covers_what_the_lost_one_did_and_the_others_stay() {
        let (mesh, fleet) = fleet();
        // The landmarks were agents 2 and 5. Agent 5 is lost, and agent 2 stays.
        let candidates: Vec<AgentId> = [1, 3, 4, 6].map(agent).to_vec();
        let elected = replace_landmark(&mesh, &fleet, &[agent(2)], &candidates, 1).unwrap();
        assert!([agent(4), agent(6)].contains(&elected.agent), "{elected:?}");
        assert!(elected.reason.contains("central to"), "{elected:?}");
        assert_eq!(replace_landmark(&mesh, &fleet, &[agent(2)], &candidates, 1).unwrap(), elected);
    }

    #[test]
    fn an_agent_that_nobody_reached_or_that_is_one_already_replaces_nobody() {
        let (mesh, mut fleet) = fleet();
        fleet.push(Nominee { agent: agent(9), city: "Harbin".to_owned(), carrier: "CERNET".to_owned() });
        assert_eq!(replace_landmark(&mesh, &fleet, &[agent(2)], &[agent(9), agent(2)], 1), None);
        assert_eq!(replace_landmark(&mesh, &fleet, &[agent(2)], &[], 1), None);
    }
}
