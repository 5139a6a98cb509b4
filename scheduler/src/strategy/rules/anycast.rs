//! Chooses, for a site with several locations (anycast), the near agent with the lowest load level.
//! Ties are broken at random.
//!
//! The coordinate of a site with several locations is a compromise between the locations, so the
//! order of near agents by distance means little. The three nearest agents are *near*. Another
//! agent is near if its distance is at most [`NEAR_FACTOR`] times the shortest distance, or exceeds
//! the shortest distance by at most [`NEAR_MORE`]. At most [`MOST_NEAR`] agents are near.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::IndexedRandom;

use crate::model::Strategy;

use super::choice::Choice;
use crate::strategy::candidate::{Candidate, ordered};
use crate::strategy::load::rank::least;

/// An agent is near if its distance is at most this multiple of the shortest distance.
const NEAR_FACTOR: u32 = 2;
/// An agent is also near if its distance exceeds the shortest distance by at most this time,
/// because so small a difference adds little to the time of a page.
const NEAR_MORE: Duration = Duration::from_millis(10);
/// This many of the nearest agents count as near, whatever their distances are.
const LEAST_NEAR: usize = 3;
/// Maximum number of near agents. More agents do not improve the choice.
const MOST_NEAR: usize = 10;

/// Chooses an agent for a site with several locations. `strategy` is recorded with the choice.
/// Returns `None` if no agent's distance is known.
pub fn choose_among_near(strategy: Strategy, candidates: &[Candidate], seed: u64) -> Option<Choice> {
    let mut ranked = least(&ordered(candidates), MOST_NEAR, Candidate::distance);
    ranked.truncate(near(&ranked)?.clamp(LEAST_NEAR, MOST_NEAR));
    let least_full = ranked.iter().map(Candidate::level).min()?;
    let freest: Vec<&Candidate> = ranked.iter().filter(|candidate| candidate.level() == least_full).collect();
    let drawn = freest.choose(&mut ChaCha8Rng::seed_from_u64(seed))?.agent;
    Some(Choice { agent: drawn, candidates: ranked, strategy, fallback: None })
}

/// Number of agents in `ranked` that are near by [`NEAR_FACTOR`] or [`NEAR_MORE`]. `ranked` is
/// sorted by distance. Returns `None` if the first distance is unknown.
pub(in crate::strategy) fn near(ranked: &[Candidate]) -> Option<usize> {
    let nearest = ranked.first()?.distance()?.as_duration();
    let limit = (nearest * NEAR_FACTOR).max(nearest + NEAR_MORE);
    Some(ranked.iter().take_while(|one| one.distance().is_some_and(|rtt| rtt.as_duration() <= limit)).count())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::{Just, Strategy as _, any, prop, prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::model::AgentId;
    use crate::strategy::fixture;

    const STRATEGY: Strategy = Strategy::GNP_TOP3;

    fn candidate(agent: i64, millis: Option<f64>, capacity: u32, load: u32) -> Candidate {
        Candidate { load, capacity, ..fixture::candidate(agent, None, millis) }
    }

    #[test]
    fn the_freest_of_the_near_wins_and_the_free_far_one_does_not() {
        let agents = [
            candidate(1, Some(10.0), 4, 4),
            candidate(2, Some(15.0), 4, 2),
            candidate(3, Some(19.0), 9, 6),
            candidate(4, Some(21.0), 99, 0),
            candidate(5, None, 99, 0),
        ];
        let choice = choose_among_near(STRATEGY, &agents, 1).unwrap();
        assert_eq!(choice.agent, AgentId::new(3));
        assert_eq!(choice.candidates, agents[..3]);
        assert_eq!(choice.fallback, None);
    }

    #[test]
    fn equally_free_agents_are_drawn_and_three_are_near_however_far() {
        let agents = [candidate(1, Some(1.0), 2, 0), candidate(2, Some(500.0), 2, 0), candidate(3, Some(900.0), 2, 0)];
        let drawn: BTreeSet<i64> =
            (0..100).map(|seed| choose_among_near(STRATEGY, &agents, seed).unwrap().agent.get()).collect();
        assert_eq!(drawn, BTreeSet::from([1, 2, 3]));
        assert_eq!(choose_among_near(STRATEGY, &[candidate(1, None, 1, 0)], 1), None);
        assert_eq!(choose_among_near(STRATEGY, &[], 1), None);
    }

    proptest! {
        #[test]
        fn the_chosen_is_near_and_nobody_near_is_freer(
            (agents, shuffled) in prop::collection::vec((prop::option::of(0.1..500.0), 1_u32..9, 0_u32..12), 1..20)
                .prop_map(|agents| {
                    let one = |(agent, (millis, capacity, load))| candidate(agent, millis, capacity, load);
                    (1..).zip(agents).map(one).collect::<Vec<_>>()
                })
                .prop_flat_map(|agents| (Just(agents.clone()), Just(agents).prop_shuffle())),
            seed in any::<u64>(),
        ) {
            let choice = choose_among_near(STRATEGY, &agents, seed);
            prop_assert_eq!(&choice, &choose_among_near(STRATEGY, &shuffled, seed));
            let Some(choice) = choice else {
                prop_assert!(agents.iter().all(|agent| agent.distance().is_none()));
                return Ok(());
            };
            let chosen = choice.candidates.iter().find(|candidate| candidate.agent == choice.agent).unwrap();
            prop_assert!(choice.candidates.iter().all(|other| other.level() >= chosen.level()));
            let farthest = choice.candidates.iter().filter_map(Candidate::distance).max().unwrap();
            let nearer = agents.iter().filter(|agent| agent.distance().is_some_and(|rtt| rtt < farthest)).count();
            prop_assert!(nearer < choice.candidates.len(), "nobody nearer is left out");
            prop_assert!(choice.candidates.len() <= MOST_NEAR);
        }
    }
}
