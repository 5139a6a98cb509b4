//! `gnp-top1` and `gnp-top3`: one of the k nearest, at random (the paper 2.2.3: the draw among several is what spreads
//! the load). Of the k only those with room are drawn from, while there are any.

use rand_chacha::ChaCha8Rng;

use super::load::draw;
use super::rank::least;
use super::{Candidate, Ranked};
use crate::model::FallbackCause::NoDistance;

/// Draws one of the `k` nearest of `ordered`.
pub(super) fn choose(ordered: &[Candidate], k: usize, rng: &mut ChaCha8Rng) -> Ranked {
    let ranked = least(ordered, k, Candidate::distance);
    let drawn = draw(&ranked, rng).ok_or(NoDistance)?.agent;
    Ok((drawn, ranked))
}
