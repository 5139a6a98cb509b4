//! Chooses an agent for a task by the batch's strategy, or at random if the strategy's input is
//! unknown or not trusted, and chooses the next candidate for a task that its agent handed back, or
//! whose agent was lost before the crawl began. Each strategy is a pure function.
//!
//! A choice depends only on the strategy, the site, the set of candidates and the seed. The order
//! of the candidates does not matter. The caller passes only candidates that may get the task
//! (connected, not excluded). A farther agent is never added to a strategy's candidates just
//! because it has a free slot. Free slots matter only for the choice among the strategy's
//! candidates.
//!
//! A task that was handed back goes to the best of the remaining stored candidates, because a new
//! choice could draw an agent that is not among the nearest.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use crate::model::{AgentId, Fallback, FallbackCause, Rtt, Strategy};

use super::candidate_and_site::{Candidate, Site, ordered};
use super::distance_strategies::{
    Choice, choose_balanced, choose_confirmed, choose_earliest_finish, choose_random, choose_top_k, first_with_room,
};
use super::name_and_place_strategies::{domain, geographic, hash, kademlia, prefix};

/// Chooses an agent; `None` only if there are no candidates.
///
/// If a strategy's input is unknown (a distance, a position, an address), the agent is drawn at
/// random, and `fallback` gives the cause.
pub fn choose(strategy: Strategy, site: &Site<'_>, candidates: &[Candidate], seed: u64) -> Option<Choice> {
    let ordered = ordered(candidates);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let chosen = match strategy {
        Strategy::Random => return choose_random(&ordered, &mut rng),
        Strategy::Hash => hash(site, &ordered),
        Strategy::Kademlia => kademlia(site, &ordered),
        Strategy::Domain => domain(site, &ordered),
        Strategy::Geographic => geographic(site, &ordered, &mut rng),
        Strategy::Prefix => prefix(site, &ordered, &mut rng),
        Strategy::GnpTop(k) => choose_top_k(&ordered, k.get(), &mut rng),
        Strategy::GnpBalanced => choose_balanced(&ordered, &mut rng),
        Strategy::GnpConfirmed => return choose_confirmed(&ordered, &mut rng),
        Strategy::EarliestFinish => choose_earliest_finish(site, &ordered),
    };
    match chosen {
        Ok((agent, candidates)) => Some(Choice { agent, candidates, strategy, fallback: None }),
        Err(cause) => choose_random(&ordered, &mut rng).map(|choice| Choice { fallback: Some(cause.into()), ..choice }),
    }
}

/// Chooses an agent for a strategy that needs distances, while the map's alarm is on. The distances
/// are not trusted, so the agent is drawn at random; `alarm` says why.
pub fn choose_during_alarm(alarm: &str, candidates: &[Candidate], seed: u64) -> Option<Choice> {
    let choice = choose_random(&ordered(candidates), &mut ChaCha8Rng::seed_from_u64(seed))?;
    let fallback = Fallback { cause: FallbackCause::UntrustedMap, said: alarm.to_owned() };
    Some(Choice { fallback: Some(fallback), ..choice })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedChoice {
    pub agent: AgentId,
    pub strategy: Strategy,
    /// Why `strategy` is not the batch's own strategy; `None` if it is.
    pub fallback: Option<Fallback>,
    /// The candidates, best first, with their round trips at the time of the choice.
    pub listed: Vec<RecordedCandidate>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedCandidate {
    pub agent: AgentId,
    pub predicted: Option<Rtt>,
    pub measured: Option<Rtt>,
}

impl RecordedChoice {
    /// The stored candidates with their current loads, from `now`. Stored candidates that are not
    /// in `now` count as full.
    pub(super) fn candidates(&self, now: &[Candidate]) -> Vec<Candidate> {
        let known = |listed: &RecordedCandidate| {
            let now = now.iter().find(|candidate| candidate.agent == listed.agent);
            let gone = Candidate { pace: Duration::ZERO, ..Candidate::new(listed.agent, 0) };
            let now = now.copied().unwrap_or(gone);
            Candidate {
                predicted: listed.predicted,
                expected: None,
                measured: listed.measured,
                spread: None,
                doubt: None,
                ..now
            }
        };
        self.listed.iter().map(known).collect()
    }
}

/// Chooses the best available candidate of a former choice, except the former agent. Candidates
/// with a free slot have priority. Returns `None` if no such candidate is available, or if the
/// strategy allows only one agent for the site (`hash`, `domain`) and the former agent is
/// available.
pub fn choose_next(former: &RecordedChoice, available: &[Candidate]) -> Option<Choice> {
    let only_one = matches!(former.strategy, Strategy::Hash | Strategy::Domain);
    if only_one && available.iter().any(|one| one.agent == former.agent) {
        return None;
    }
    let candidates = former.candidates(available);
    let is_there = |agent: AgentId| agent != former.agent && available.iter().any(|one| one.agent == agent);
    let others: Vec<Candidate> = candidates.iter().filter(|listed| is_there(listed.agent)).copied().collect();
    let agent = first_with_room(&others)?.agent;
    Some(Choice { agent, candidates, strategy: former.strategy, fallback: former.fallback.clone() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    use super::*;

    fn available(agent: i64, load: u32) -> Candidate {
        Candidate { load, ..Candidate::new(AgentId::new(agent), 2) }
    }

    fn former(agent: i64, listed: &[i64]) -> RecordedChoice {
        let listed = listed.iter().map(|&agent| RecordedCandidate {
            agent: AgentId::new(agent),
            predicted: None,
            measured: None,
        });
        RecordedChoice {
            agent: AgentId::new(agent),
            strategy: Strategy::GNP_TOP3,
            fallback: None,
            listed: listed.collect(),
        }
    }

    #[test]
    fn the_best_of_the_others_takes_its_place_one_with_room_first() {
        let former = former(7, &[5, 7, 9]);
        let next = |available: &[Candidate]| choose_next(&former, available).map(|choice| choice.agent.get());
        assert_eq!(next(&[available(1, 0), available(5, 0), available(9, 0)]), Some(5));
        assert_eq!(next(&[available(1, 0), available(5, 2), available(9, 1)]), Some(9), "5 is full");
        assert_eq!(next(&[available(1, 0), available(5, 2), available(9, 2)]), Some(5), "both are");
        assert_eq!(next(&[available(1, 0), available(7, 0)]), None, "none of them is there");
    }

    #[test]
    fn a_strategy_that_has_one_agent_for_a_site_keeps_to_it_as_long_as_it_is_there() {
        for strategy in [Strategy::Hash, Strategy::Domain] {
            let former = RecordedChoice { strategy, ..former(7, &[7, 9]) };
            let next = |available: &[Candidate]| choose_next(&former, available).map(|choice| choice.agent.get());
            assert_eq!(next(&[available(7, 0), available(9, 0)]), None);
            assert_eq!(next(&[available(9, 0)]), Some(9));
        }
    }

    proptest! {
        #[test]
        fn nobody_but_a_former_candidate_is_chosen_and_the_list_stays(
            listed in prop::collection::hash_set(1_i64..12, 0..6),
            gone in 1_i64..12,
            there in prop::collection::hash_map(1_i64..12, 0_u32..4, 0..12),
        ) {
            let listed: Vec<i64> = listed.into_iter().collect();
            let former = former(gone, &listed);
            let now: Vec<Candidate> = there.iter().map(|(&agent, &load)| available(agent, load)).collect();
            let possible = |agent: &&i64| **agent != gone && there.contains_key(*agent);
            match choose_next(&former, &now) {
                None => prop_assert!(!listed.iter().any(|agent| possible(&agent))),
                Some(choice) => {
                    let chosen = choice.agent.get();
                    prop_assert!(listed.contains(&chosen) && chosen != gone && there.contains_key(&chosen));
                    let order: Vec<i64> = choice.candidates.iter().map(|listed| listed.agent.get()).collect();
                    prop_assert_eq!(&order, &listed);
                    let freer = listed.iter().filter(possible).take_while(|agent| **agent != chosen);
                    prop_assert!(there[&chosen] >= 2 || freer.into_iter().all(|agent| there[agent] >= 2));
                }
            }
        }
    }
}
