//! The strategies that use distances: `gnp-topK`, `gnp-balanced`, `gnp-confirmed`,
//! `earliest-finish`, and the choice for anycast sites; also `random`, to which they fall back.
//! Defines a choice, how free slots decide it, and how uncertain distances are.
//!
//! `gnp-balanced`: an agent's weight is the free share of its slots, times the shortest distance
//! divided by the agent's own distance.
//!
//! If distances are uncertain, free slots have more influence: the logarithm of the ratio of the
//! distances is multiplied by a factor below 1. The factor becomes smaller as the variance of this
//! logarithm grows relative to the square of [`DIFFER`]. The product is the posterior mean of a
//! normal distribution with a conjugate prior (Gelman et al., "Bayesian data analysis", 2013,
//! section 2.5).
//!
//! If all of the `NEAREST` agents are full, `gnp-balanced` gives the task to the agent where it
//! ends first.
//!
//! `gnp-confirmed`: the agent is not drawn at random, because this strategy is for batches where
//! distance matters more than load. If the best agent is full, the next agent that is about as near
//! and has a free slot gets the task. If no agent about as near has a free slot, the task waits for
//! the best agent.
//!
//! Anycast sites: the coordinate of a site with several locations is a compromise between the
//! locations, so the order of near agents by distance means little. The three nearest agents are
//! *near*. Another agent is near if its distance is at most `NEAR_FACTOR` times the shortest
//! distance, or exceeds the shortest distance by at most `NEAR_MORE`. At most `MOST_NEAR`
//! agents are near.
//!
//! `earliest-finish` chooses here for a single site. [`super::plan`] plans many sites together. An
//! agent with an unknown distance is treated as if it were as far as the farthest agent.

use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::IndexedRandom;

use crate::model::FallbackCause::NoDistance;
use crate::model::{AgentId, Fallback, FallbackCause, Rtt, Strategy};

use super::candidate_and_site::{Candidate, LISTED, Site, least, ordered};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub agent: AgentId,
    /// The agents from which the strategy chose, best first. For `random`, only the chosen agent.
    pub candidates: Vec<Candidate>,
    /// The strategy that made the choice: the requested one, unless there is a `fallback`.
    pub strategy: Strategy,
    /// Why the requested strategy was not applied; `None` if it was applied.
    pub fallback: Option<Fallback>,
}

/// The chosen agent and the candidates, best first; or the reason why the strategy cannot choose.
pub(super) type Ranked = Result<(AgentId, Vec<Candidate>), FallbackCause>;

/// The fallback cause if there are no candidates. This cause is never stored, because
/// [`choose`](crate::strategy::choose) returns no choice if there are no candidates.
pub(super) const NOBODY: FallbackCause = FallbackCause::NoDistance;

/// Chooses the first of `ranked`, or fails with the cause `otherwise`.
pub(super) fn first(ranked: Vec<Candidate>, otherwise: FallbackCause) -> Ranked {
    ranked.first().map(|first| first.agent).map(|agent| (agent, ranked)).ok_or(otherwise)
}

/// Draws with equal probability among the candidates with a free slot. If all candidates are full,
/// draws among the candidates where the task would end first.
pub(super) fn draw<'a>(ranked: &'a [Candidate], rng: &mut ChaCha8Rng) -> Option<&'a Candidate> {
    let open: Vec<&Candidate> = ranked.iter().filter(|candidate| candidate.level().has_room()).collect();
    if !open.is_empty() {
        return open.choose(rng).copied();
    }
    let soonest = ranked.iter().map(Candidate::next_ends).min()?;
    let soon: Vec<&Candidate> = ranked.iter().filter(|candidate| candidate.next_ends() == soonest).collect();
    soon.choose(rng).copied()
}

/// The first of `ranked` with a free slot; if all are full, the first of `ranked`.
pub(super) fn first_with_room(ranked: &[Candidate]) -> Option<&Candidate> {
    ranked.iter().find(|candidate| candidate.level().has_room()).or_else(|| ranked.first())
}

/// `gnp-topK`: draws one of the k nearest agents, to spread the load (section 2.2.3 of the paper
/// that the README cites). If some of the k agents have a free slot, full agents are left out.
pub(super) fn choose_top_k(ordered: &[Candidate], k: usize, rng: &mut ChaCha8Rng) -> Ranked {
    let ranked = least(ordered, k, Candidate::distance);
    let drawn = draw(&ranked, rng).ok_or(FallbackCause::NoDistance)?.agent;
    Ok((drawn, ranked))
}

/// `random`: draws among all agents with a free slot, with equal probability. If all agents are
/// full, draws among the agents where the task would end first.
pub(super) fn choose_random(ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Option<Choice> {
    let drawn = draw(ordered, rng)?;
    Some(Choice { agent: drawn.agent, candidates: vec![*drawn], strategy: Strategy::Random, fallback: None })
}

/// Number of agents in the draw. In maps of thirty agents and nine landmarks, the fifth nearest
/// agent is about twice as far as the nearest. With more agents in the draw, many sites would go to
/// a far agent with a free slot, although a near slot becomes free soon.
const NEAREST: usize = 5;

/// Draws one of the nearest agents of `ordered`.
pub(super) fn choose_balanced(ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Ranked {
    let ranked = least(ordered, NEAREST, Candidate::distance);
    let first = ranked.first().copied().ok_or(NoDistance)?;
    let nearest = first.distance().ok_or(NoDistance)?;
    let closeness = |one: &Candidate| {
        let believed = DIFFER.powi(2) / (DIFFER.powi(2) + variance(one) + variance(&first));
        one.distance().map_or(0.0, |own| (nearest.as_millis_f64() / own.as_millis_f64()).powf(believed))
    };
    let weighted = ranked.choose_weighted(rng, |one| free_share(one) * closeness(one)).ok();
    // `None` if all weights are 0, because every agent is full.
    let agent = match weighted {
        Some(drawn) => drawn.agent,
        None => draw(&ranked, rng).ok_or(NoDistance)?.agent,
    };
    Ok((agent, ranked))
}

fn free_share(candidate: &Candidate) -> f64 {
    let free = candidate.capacity.saturating_sub(candidate.load);
    f64::from(free) / f64::from(candidate.capacity.max(1))
}

/// Chooses the nearest of the agents in `ordered` that measured the site.
///
/// If some agents did not measure the site and no agent has a predicted distance, there was no map
/// from which to select confirmers, and the choice is recorded as made by the fallback `gnp-top1`.
/// If no candidate measured the site, `gnp-top3` is the fallback.
pub(super) fn choose_confirmed(ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Option<Choice> {
    let mut measured: Vec<Candidate> =
        ordered.iter().filter(|candidate| candidate.measured.is_some()).copied().collect();
    measured.sort_by_key(|candidate| (candidate.measured, candidate.agent));
    let near = near(&measured).map_or(&[][..], |near| &measured[..near]);
    let Some(best) = first_with_room(near) else {
        return match choose_top_k(ordered, 3, rng) {
            Ok((agent, candidates)) => {
                let fallback = Some(FallbackCause::NobodyMeasured.into());
                Some(Choice { agent, candidates, strategy: Strategy::GNP_TOP3, fallback })
            }
            Err(cause) => choose_random(ordered, rng).map(|choice| Choice { fallback: Some(cause.into()), ..choice }),
        };
    };
    let agent = best.agent;
    let mapped = measured.len() == ordered.len() || ordered.iter().any(|candidate| candidate.predicted.is_some());
    let (strategy, fallback) =
        if mapped { (Strategy::GnpConfirmed, None) } else { (Strategy::GNP_TOP1, Some(FallbackCause::NoMap.into())) };
    Some(Choice { agent, candidates: measured, strategy, fallback })
}

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
pub(super) fn near(ranked: &[Candidate]) -> Option<usize> {
    let nearest = ranked.first()?.distance()?.as_duration();
    let limit = (nearest * NEAR_FACTOR).max(nearest + NEAR_MORE);
    Some(ranked.iter().take_while(|one| one.distance().is_some_and(|rtt| rtt.as_duration() <= limit)).count())
}

/// Chooses the agent where the crawl ends first. Ties go to the nearest agent.
pub(super) fn choose_earliest_finish(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
    let farthest = ordered.iter().filter_map(Candidate::distance).max().ok_or(NoDistance)?;
    let work = site.work.unwrap_or_default();
    let work = work.counted();
    let ends = |candidate: &Candidate| -> (u64, Rtt, AgentId) {
        let distance = candidate.distance().unwrap_or(farthest);
        let ends = candidate.waits().as_secs_f64() + work.takes_s(distance, candidate.speed);
        // Non-negative floats have the same order as their bits.
        (ends.to_bits(), distance, candidate.agent)
    };
    first(least(ordered, LISTED, |candidate| Some(ends(candidate))), NoDistance)
}

/// The usual difference between the nearest agents' distances, as a standard deviation of their
/// logarithms. This difference is about a quarter if the fifth nearest agent is twice as far as the
/// nearest. For confirmation, values from 0.2 to 0.4 give about equal results (docs/method.md).
pub const DIFFER: f64 = 0.25;

/// The uncertainty of an agent's distance, as the variance of its logarithm. Zero if the distance
/// was measured, or if the map gives no spread.
pub(super) fn variance(candidate: &Candidate) -> f64 {
    let spread = candidate.spread.filter(|_| candidate.measured.is_none());
    spread.map_or(0.0, |spread| spread.ratio().powi(2))
}

/// Whether it is uncertain which agent is nearest: whether the shortest distance is only predicted,
/// with a spread greater than [`DIFFER`].
pub fn unsure(candidates: &[Candidate]) -> bool {
    let known = candidates.iter().filter_map(|one| Some((one.distance()?, one.agent, one)));
    let nearest = known.min_by_key(|(distance, agent, _)| (*distance, *agent));
    nearest.is_some_and(|(_, _, nearest)| variance(nearest) > DIFFER.powi(2))
}

/// The estimated duration of a confirmation by `agents` agents, each with `samples` samples and one
/// request to warm up the connection. A confirmation takes no extra time if the site waits at least
/// this long for another reason.
pub const fn confirmation_takes(agents: u32, samples: u32, interval: Duration) -> Duration {
    interval.saturating_mul(agents.saturating_mul(samples.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::{Just, Strategy as _, any, prop, prop_assert, prop_assert_eq, proptest};

    use crate::model::AgentId;
    use crate::strategy::fixture::{candidate, measured};
    use crate::strategy::{Site, Spread, choose, fixture};

    use super::*;

    /// Agents numbered from 1, with these predicted and measured round trips in milliseconds.
    fn agents(distances: &[(Option<f64>, Option<f64>)]) -> Vec<Candidate> {
        (1..).zip(distances).map(|(agent, (predicted, measured))| candidate(agent, *predicted, *measured)).collect()
    }

    fn chosen(distances: &[(Option<f64>, Option<f64>)]) -> Choice {
        choose(Strategy::GnpConfirmed, &Site::default(), &agents(distances), 7).unwrap()
    }

    #[test]
    fn the_best_measured_wins_over_a_better_prediction_and_all_measured_are_listed_best_first() {
        let choice =
            chosen(&[(Some(50.0), Some(40.0)), (Some(5.0), None), (Some(9.0), Some(30.0)), (None, Some(60.0))]);
        assert_eq!(choice.agent, AgentId::new(3));
        let listed: Vec<i64> = choice.candidates.iter().map(|candidate| candidate.agent.get()).collect();
        assert_eq!(listed, [3, 1, 4]);
        assert_eq!((choice.strategy, choice.fallback), (Strategy::GnpConfirmed, None));
    }

    #[test]
    fn a_fleet_that_measured_to_the_last_agent_needs_no_map() {
        let choice = chosen(&[(None, Some(40.0)), (None, Some(30.0))]);
        assert_eq!((choice.agent, choice.fallback), (AgentId::new(2), None));
    }

    #[test]
    fn without_a_map_the_nearest_that_measured_is_taken_and_it_says_so() {
        let choice = chosen(&[(None, Some(40.0)), (None, None), (None, Some(30.0))]);
        assert_eq!((choice.agent, choice.strategy), (AgentId::new(3), Strategy::GNP_TOP1));
        assert_eq!(choice.fallback, Some(FallbackCause::NoMap.into()));
    }

    #[test]
    fn with_nobody_there_that_measured_it_is_gnp_top3_and_without_any_distance_random() {
        let choice = chosen(&[(Some(5.0), None), (Some(90.0), None), (Some(6.0), None), (Some(7.0), None)]);
        assert_ne!(choice.agent, AgentId::new(2));
        let fallback = Some(FallbackCause::NobodyMeasured.into());
        assert_eq!((choice.strategy, choice.fallback), (Strategy::GNP_TOP3, fallback));
        let choice = chosen(&[(None, None), (None, None)]);
        assert_eq!(choice.strategy, Strategy::Random);
        assert!(choice.fallback.is_some());
    }

    const STRATEGY: Strategy = Strategy::GNP_TOP3;

    fn loaded(agent: i64, millis: Option<f64>, capacity: u32, load: u32) -> Candidate {
        Candidate { load, capacity, ..fixture::candidate(agent, None, millis) }
    }

    #[test]
    fn the_freest_of_the_near_wins_and_the_free_far_one_does_not() {
        let agents = [
            loaded(1, Some(10.0), 4, 4),
            loaded(2, Some(15.0), 4, 2),
            loaded(3, Some(19.0), 9, 6),
            loaded(4, Some(21.0), 99, 0),
            loaded(5, None, 99, 0),
        ];
        let choice = choose_among_near(STRATEGY, &agents, 1).unwrap();
        assert_eq!(choice.agent, AgentId::new(3));
        assert_eq!(choice.candidates, agents[..3]);
        assert_eq!(choice.fallback, None);
    }

    #[test]
    fn equally_free_agents_are_drawn_and_three_are_near_however_far() {
        let agents = [loaded(1, Some(1.0), 2, 0), loaded(2, Some(500.0), 2, 0), loaded(3, Some(900.0), 2, 0)];
        let drawn: BTreeSet<i64> =
            (0..100).map(|seed| choose_among_near(STRATEGY, &agents, seed).unwrap().agent.get()).collect();
        assert_eq!(drawn, BTreeSet::from([1, 2, 3]));
        assert_eq!(choose_among_near(STRATEGY, &[loaded(1, None, 1, 0)], 1), None);
        assert_eq!(choose_among_near(STRATEGY, &[], 1), None);
    }

    proptest! {
        #[test]
        fn the_chosen_is_near_and_nobody_near_is_freer(
            (agents, shuffled) in prop::collection::vec((prop::option::of(0.1..500.0), 1_u32..9, 0_u32..12), 1..20)
                .prop_map(|agents| {
                    let one = |(agent, (millis, capacity, load))| loaded(agent, millis, capacity, load);
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

    fn predicted(agent: i64, millis: f64, spread: f64) -> Candidate {
        Candidate { spread: Some(Spread::new(spread)), ..candidate(agent, Some(millis), None) }
    }

    #[test]
    fn only_what_ranks_first_can_be_too_unsure() {
        let sure = predicted(1, 10.0, 0.2);
        let unsure_one = |millis| predicted(2, millis, 0.3);
        let nearer = measured(3, 5.0);
        assert!(!unsure(&[]) && !unsure(&[Candidate::new(AgentId::new(1), 1)]), "nothing is known");
        assert!(!unsure(&[sure]) && !unsure(&[sure, unsure_one(20.0)]));
        assert!(unsure(&[sure, unsure_one(8.0)]) && unsure(&[unsure_one(8.0), sure]));
        assert!(!unsure(&[unsure_one(8.0), nearer]), "a measured one is nearer");
        let both = Candidate { measured: nearer.measured, ..unsure_one(8.0) };
        assert!(!unsure(&[both]), "it was measured");
    }
}
