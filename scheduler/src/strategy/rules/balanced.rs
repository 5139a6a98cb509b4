//! `gnp-balanced`: one of the nearest, drawn with weights: how much of it is free, times how near it is.
//!
//! The weight of an agent is its free share (free slots over slots) times the nearest distance over its own. So equally near agents get
//! work in proportion to their room, and of equally free ones a site goes three times as often to one a third as far, where that is
//! measured. The less sure the distances are, the less they count, and the more the load does: the logarithm of their ratio is drawn towards
//! nothing as far as its variance says beside [`DIFFER`]'s (a conjugate normal mean: Gelman et al., "Bayesian data analysis", 2013, 2.5). While any
//! of the [`NEAREST`] has room those without have weight 0; where none has, the task goes where it ends first.

use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use crate::model::FallbackCause::NoDistance;
use crate::strategy::learned::confidence::{DIFFER, variance};
use crate::strategy::load::draw;
use crate::strategy::load::rank::least;
use crate::strategy::{Candidate, Ranked};

/// Agents that are drawn from. In maps of thirty agents and nine landmarks the fifth nearest is about twice as far as the nearest: more
/// would send many sites far away for room that the next crawl's end brings anyway.
const NEAREST: usize = 5;

/// Draws one of the nearest of `ordered`.
pub(in crate::strategy) fn choose(ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Ranked {
    let ranked = least(ordered, NEAREST, Candidate::distance);
    let first = ranked.first().copied().ok_or(NoDistance)?;
    let nearest = first.distance().ok_or(NoDistance)?;
    let closeness = |one: &Candidate| {
        let believed = DIFFER.powi(2) / (DIFFER.powi(2) + variance(one) + variance(&first));
        one.distance().map_or(0.0, |own| (nearest.as_millis_f64() / own.as_millis_f64()).powf(believed))
    };
    let weighted = ranked.choose_weighted(rng, |one| free_share(one) * closeness(one)).ok();
    // No weight but 0: nobody has room.
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
