//! `gnp-top1` and `gnp-top3`: one of the k nearest, at random (the paper 2.2.3: the draw among several is what spreads
//! the load). Of the k only those with room are drawn from, while there are any.

use rand_chacha::ChaCha8Rng;

use crate::model::Strategy;

use super::load::draw;
use super::{Candidate, Choice, random};

/// Draws one of the `k` nearest of `ordered` for this strategy, or, when no distance is known, any.
pub(super) fn choose(ordered: &[Candidate], strategy: Strategy, k: usize, rng: &mut ChaCha8Rng) -> Option<Choice> {
    let mut ranked: Vec<Candidate> =
        ordered.iter().filter(|candidate| candidate.distance().is_some()).copied().collect();
    ranked.sort_by_key(|candidate| (candidate.distance(), candidate.agent));
    ranked.truncate(k);
    match draw(&ranked, rng).map(|drawn| drawn.agent) {
        Some(agent) => Some(Choice { agent, candidates: ranked, strategy, fallback: None }),
        None => random::choose(ordered, rng)
            .map(|choice| Choice { fallback: Some("no agent's distance to the site is known".to_owned()), ..choice }),
    }
}
