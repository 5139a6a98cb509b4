//! Choosing an agent for a task: one pure function a strategy.
//!
//! A choice is a function of the candidates as a set and the seed: the order in which they are given changes nothing, and
//! the same seed chooses the same agent. Who may be a candidate (online, country, quota) is decided before. A full candidate
//! is passed over for one with room, within what the strategy would choose from anyway: nearness is never given up for it.

use std::time::Duration;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::model::{AgentId, Rtt, Strategy};

mod anycast;
pub mod balance;
mod confirmed;
mod load;
mod nearest;
mod next;
mod random;

pub use anycast::choose_among_near;
pub use load::LoadLevel;
pub use next::{Former, Listed, choose_next};

/// An agent that may get the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// The agent.
    pub agent: AgentId,
    /// Its predicted round trip to the site; `None` when either has no place on the map.
    pub predicted: Option<Rtt>,
    /// Its expected round trip, by which it ranks: not less than predicted where it might be far. `None` where only a point
    /// is known; then the prediction ranks.
    pub expected: Option<Rtt>,
    /// Its measured round trip to the site; `None` when it did not measure.
    pub measured: Option<Rtt>,
    /// Tasks it holds.
    pub load: u32,
    /// Tasks it may hold at once.
    pub capacity: u32,
    /// How long its crawls take.
    pub pace: Duration,
}

impl Candidate {
    /// What it ranks by: measured before expected before predicted (the paper 2.1, step e).
    pub fn distance(&self) -> Option<Rtt> {
        self.measured.or(self.expected).or(self.predicted)
    }

    /// How full it is.
    pub fn level(&self) -> LoadLevel {
        LoadLevel::of(self.load, self.capacity)
    }

    /// When one more task would end, from now.
    fn next_ends(&self) -> Duration {
        load::last_ends(self.level().plus(1), self.capacity, self.pace)
    }
}

/// One choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Who gets the task.
    pub agent: AgentId,
    /// Among whom it was drawn, best first; the chosen one alone where every agent was as good.
    pub candidates: Vec<Candidate>,
    /// The strategy that chose: the one asked for, unless `fallback` says why not.
    pub strategy: Strategy,
    /// Why the strategy asked for could not be followed; `None` when it was.
    pub fallback: Option<String>,
}

/// Chooses an agent. `None` only when there are no candidates.
///
/// A strategy that goes by distance chooses among those whose distance is known; where none is, it draws at random and
/// says so. Fewer candidates than it ranks are no obstacle.
pub fn choose(strategy: Strategy, candidates: &[Candidate], seed: u64) -> Option<Choice> {
    let ordered = ordered(candidates);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    match strategy {
        Strategy::Random => random::choose(&ordered, &mut rng),
        Strategy::GnpTop1 => nearest::choose(&ordered, strategy, 1, &mut rng),
        Strategy::GnpTop3 => nearest::choose(&ordered, strategy, 3, &mut rng),
        Strategy::GnpConfirmed => confirmed::choose(&ordered, &mut rng),
    }
}

/// Each agent once, and in one order, whatever order they came in.
fn ordered(candidates: &[Candidate]) -> Vec<Candidate> {
    let mut ordered = candidates.to_vec();
    ordered.sort_unstable_by_key(|candidate| {
        (candidate.agent, candidate.distance(), candidate.measured, candidate.expected, candidate.predicted)
    });
    ordered.dedup_by_key(|candidate| candidate.agent);
    ordered
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::{Just, Strategy as _, any, prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn candidate(agent: i64, predicted: Option<f64>, measured: Option<f64>) -> Candidate {
        let rtt = |millis: f64| Rtt::try_from_millis_f64(millis).unwrap();
        let agent = AgentId::new(agent);
        let (predicted, measured) = (predicted.map(rtt), measured.map(rtt));
        Candidate { agent, predicted, expected: None, measured, load: 0, capacity: 1, pace: Duration::from_secs(1) }
    }

    fn fleet(size: i64) -> Vec<Candidate> {
        (1..=size).map(|i| candidate(i, Some(f64::from(u16::try_from(i).unwrap()) * 10.0), None)).collect()
    }

    #[test]
    fn nobody_is_chosen_among_nobody() {
        for strategy in Strategy::ALL {
            assert_eq!(choose(strategy, &[], 1), None);
        }
    }

    #[test]
    fn top1_takes_the_nearest_and_a_measured_distance_beats_a_predicted_one() {
        let agents = [candidate(1, Some(10.0), Some(90.0)), candidate(2, Some(50.0), None), candidate(3, None, None)];
        let choice = choose(Strategy::GnpTop1, &agents, 9).unwrap();
        assert_eq!(choice.agent, AgentId::new(2));
        assert_eq!(choice.candidates, [agents[1]]);
        assert_eq!(choice.fallback, None);
    }

    #[test]
    fn an_agent_that_might_be_far_ranks_by_what_is_expected_of_it() {
        let risky = Candidate { expected: Rtt::try_from_millis_f64(60.0).ok(), ..candidate(1, Some(10.0), None) };
        let sure = candidate(2, Some(50.0), None);
        assert_eq!(choose(Strategy::GnpTop1, &[risky, sure], 1).unwrap().agent, AgentId::new(2));
    }

    #[test]
    fn top3_draws_each_of_the_three_nearest_and_ranks_them() {
        let agents = fleet(10);
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let choice = choose(Strategy::GnpTop3, &agents, seed).unwrap();
            assert_eq!(choice.candidates, agents[..3]);
            seen.insert(choice.agent.get());
        }
        assert_eq!(seen, BTreeSet::from([1, 2, 3]));
    }

    #[test]
    fn fewer_agents_than_the_strategy_ranks_are_all_candidates() {
        let choice = choose(Strategy::GnpTop3, &fleet(2), 5).unwrap();
        assert_eq!(choice.candidates.len(), 2);
        assert_eq!(choose(Strategy::GnpTop3, &fleet(1), 5).unwrap().agent, AgentId::new(1));
    }

    #[test]
    fn without_any_distance_any_agent_is_drawn_and_the_choice_says_why() {
        let agents: Vec<Candidate> = (1..=5).map(|i| candidate(i, None, None)).collect();
        let drawn: BTreeSet<i64> = (0..200)
            .map(|seed| {
                let choice = choose(Strategy::GnpTop3, &agents, seed).unwrap();
                assert!(choice.fallback.is_some());
                choice.agent.get()
            })
            .collect();
        assert_eq!(drawn.len(), 5);
    }

    #[test]
    fn random_reaches_every_agent_about_evenly() {
        let agents = fleet(8);
        let mut counts = [0_u32; 8];
        for seed in 0..4_000 {
            let agent = choose(Strategy::Random, &agents, seed).unwrap().agent.get();
            counts[usize::try_from(agent - 1).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (400..600).contains(count)), "{counts:?}");
    }

    proptest! {
        #[test]
        fn a_choice_depends_on_the_seed_and_not_on_the_order(
            (agents, shuffled) in prop::collection::vec((prop::option::of(1.0..500.0), prop::option::of(1.0..500.0)), 1..20)
                .prop_map(|distances| {
                    let numbered = (1..).zip(distances);
                    numbered.map(|(i, (predicted, measured))| candidate(i, predicted, measured)).collect::<Vec<_>>()
                })
                .prop_flat_map(|agents| (Just(agents.clone()), Just(agents).prop_shuffle())),
            seed in any::<u64>(),
        ) {
            for strategy in Strategy::ALL {
                let choice = choose(strategy, &agents, seed).unwrap();
                prop_assert_eq!(&choice, &choose(strategy, &shuffled, seed).unwrap());
                prop_assert!(choice.candidates.iter().any(|candidate| candidate.agent == choice.agent));
                prop_assert_eq!(choice.fallback.is_none(), choice.strategy == strategy);
                if strategy == Strategy::GnpConfirmed {
                    continue;
                }
                if strategy.needs_distance() && choice.fallback.is_none() {
                    let known = agents.iter().filter_map(Candidate::distance);
                    let worst = choice.candidates.iter().filter_map(Candidate::distance).max().unwrap();
                    let nearer = known.filter(|distance| *distance < worst).count();
                    prop_assert!(nearer < choice.candidates.len());
                }
            }
        }
    }
}
