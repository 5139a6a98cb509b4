//! Chooses an agent for a task by the batch's strategy, or at random if the strategy's input is
//! unknown or not trusted. Each strategy is a pure function.
//!
//! A choice depends only on the strategy, the site, the set of candidates and the seed. The order
//! of the candidates does not matter. The caller passes only candidates that may get the task
//! (connected, not excluded). A farther agent is never added to a strategy's candidates just
//! because it has a free slot. Free slots matter only for the choice among the strategy's
//! candidates.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;

use crate::model::{Fallback, FallbackCause, Strategy};

use super::candidate::{Candidate, ordered};
use super::rules;
use super::rules::choice::Choice;
use super::site_facts::Site;

/// Chooses an agent; `None` only if there are no candidates.
///
/// If a strategy's input is unknown (a distance, a position, an address), the agent is drawn at
/// random, and `fallback` gives the cause.
pub fn choose(strategy: Strategy, site: &Site<'_>, candidates: &[Candidate], seed: u64) -> Option<Choice> {
    let ordered = ordered(candidates);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let chosen = match strategy {
        Strategy::Random => return rules::random::choose(&ordered, &mut rng),
        Strategy::Hash => rules::by_name::hash(site, &ordered),
        Strategy::Kademlia => rules::by_name::kademlia(site, &ordered),
        Strategy::Domain => rules::by_name::domain(site, &ordered),
        Strategy::Geographic => rules::by_place::geographic(site, &ordered, &mut rng),
        Strategy::Prefix => rules::by_place::prefix(site, &ordered, &mut rng),
        Strategy::GnpTop(k) => rules::top_k::choose(&ordered, k.get(), &mut rng),
        Strategy::GnpBalanced => rules::balanced::choose(&ordered, &mut rng),
        Strategy::GnpConfirmed => return rules::confirmed::choose(&ordered, &mut rng),
        Strategy::EarliestFinish => rules::earliest_finish::choose(site, &ordered),
    };
    match chosen {
        Ok((agent, candidates)) => Some(Choice { agent, candidates, strategy, fallback: None }),
        Err(cause) => {
            rules::random::choose(&ordered, &mut rng).map(|choice| Choice { fallback: Some(cause.into()), ..choice })
        }
    }
}

/// Chooses an agent for a strategy that needs distances, while the map's alarm is on. The distances
/// are not trusted, so the agent is drawn at random; `alarm` says why.
pub fn choose_during_alarm(alarm: &str, candidates: &[Candidate], seed: u64) -> Option<Choice> {
    let choice = rules::random::choose(&ordered(candidates), &mut ChaCha8Rng::seed_from_u64(seed))?;
    let fallback = Fallback { cause: FallbackCause::UntrustedMap, said: alarm.to_owned() };
    Some(Choice { fallback: Some(fallback), ..choice })
}
