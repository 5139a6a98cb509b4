//! `gnp-balanced`: one of the nearest, drawn with weights: how much of it is free, times how near it is.
//!
//! The weight of an agent is its free share (free slots over slots) times the nearest distance over its own. So equally near agents get
//! work in proportion to their room, and of equally free ones a site goes three times as often to one a third as far. While any of the
//! [`NEAREST`] has room those without have weight 0; where none has, the task goes where it ends first.

use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::load::draw;
use super::rank::least;
use super::{Candidate, NO_DISTANCE, Ranked};

/// Agents that are drawn from. In maps of thirty agents and nine landmarks the fifth nearest is about twice as far as the nearest: more
/// would send many sites far away for room that the next crawl's end brings anyway.
const NEAREST: usize = 5;

/// Draws one of the nearest of `ordered`.
pub(super) fn choose(ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Ranked {
    let ranked = least(ordered, NEAREST, Candidate::distance);
    let nearest = ranked.first().and_then(Candidate::distance).ok_or(NO_DISTANCE)?;
    let closeness = |one: &Candidate| one.distance().map_or(0.0, |own| nearest.as_millis_f64() / own.as_millis_f64());
    let weighted = ranked.choose_weighted(rng, |one| free_share(one) * closeness(one)).ok();
    // No weight but 0: nobody has room.
    let agent = match weighted {
        Some(drawn) => drawn.agent,
        None => draw(&ranked, rng).ok_or(NO_DISTANCE)?.agent,
    };
    Ok((agent, ranked))
}

fn free_share(candidate: &Candidate) -> f64 {
    let free = candidate.capacity.saturating_sub(candidate.load);
    f64::from(free) / f64::from(candidate.capacity.max(1))
}
