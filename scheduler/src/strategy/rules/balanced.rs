//! `gnp-balanced`: draws one of the nearest agents, with weights for free slots and nearness.
//!
//! An agent's weight is the free share of its slots, times the shortest distance divided by the
//! agent's own distance.
//!
//! If distances are uncertain, free slots have more influence: the logarithm of the ratio of the
//! distances is multiplied by a factor below 1. The factor becomes smaller as the variance of this
//! logarithm grows relative to the square of [`DIFFER`]. The product is the posterior mean of a
//! normal distribution with a conjugate prior (Gelman et al., "Bayesian data analysis", 2013,
//! section 2.5).
//!
//! If all of the [`NEAREST`] agents are full, the task goes to the agent where it ends first.

use rand::rngs::ChaCha8Rng;
use rand::seq::IndexedRandom;

use super::choice::Ranked;
use super::free_slots::draw;
use crate::model::FallbackCause::NoDistance;
use crate::strategy::candidate::Candidate;
use crate::strategy::load::rank::least;
use crate::strategy::uncertainty::{DIFFER, variance};

/// Number of agents in the draw. In maps of thirty agents and nine landmarks, the fifth nearest
/// agent is about twice as far as the nearest. With more agents in the draw, many sites would go to
/// a far agent with a free slot, although a near slot becomes free soon.
const NEAREST: usize = 5;

/// Draws one of the nearest agents of `ordered`.
pub(in crate::strategy) fn choose(ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Ranked {
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
