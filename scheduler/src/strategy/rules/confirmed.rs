//! `gnp-confirmed`: chooses the agent with the shortest measured distance, after landmarks and
//! confirmers have measured the site.
//!
//! The agent is not drawn at random, because this strategy is for batches where distance matters
//! more than load. If the best agent is full, the next agent that is about as near and has a free
//! slot gets the task. If no agent about as near has a free slot, the task waits for the best
//! agent.

use rand::rngs::ChaCha8Rng;

use crate::model::{FallbackCause, Strategy};

use super::choice::Choice;
use super::free_slots::first_with_room;
use super::{anycast, random, top_k};
use crate::strategy::candidate::Candidate;

/// Chooses the nearest of the agents in `ordered` that measured the site.
///
/// If some agents did not measure the site and no agent has a predicted distance, there was no map
/// from which to select confirmers, and the choice is recorded as made by the fallback `gnp-top1`.
/// If no candidate measured the site, `gnp-top3` is the fallback.
pub(in crate::strategy) fn choose(ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Option<Choice> {
    let mut measured: Vec<Candidate> =
        ordered.iter().filter(|candidate| candidate.measured.is_some()).copied().collect();
    measured.sort_by_key(|candidate| (candidate.measured, candidate.agent));
    let near = anycast::near(&measured).map_or(&[][..], |near| &measured[..near]);
    let Some(best) = first_with_room(near) else {
        return match top_k::choose(ordered, 3, rng) {
            Ok((agent, candidates)) => {
                let fallback = Some(FallbackCause::NobodyMeasured.into());
                Some(Choice { agent, candidates, strategy: Strategy::GNP_TOP3, fallback })
            }
            Err(cause) => random::choose(ordered, rng).map(|choice| Choice { fallback: Some(cause.into()), ..choice }),
        };
    };
    let agent = best.agent;
    let mapped = measured.len() == ordered.len() || ordered.iter().any(|candidate| candidate.predicted.is_some());
    let (strategy, fallback) =
        if mapped { (Strategy::GnpConfirmed, None) } else { (Strategy::GNP_TOP1, Some(FallbackCause::NoMap.into())) };
    Some(Choice { agent, candidates: measured, strategy, fallback })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::AgentId;
    use crate::strategy::fixture::candidate;
    use crate::strategy::{Site, choose};

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
}
