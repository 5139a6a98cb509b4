//! `gnp-topK`: draws one of the k nearest agents.

use rand::rngs::ChaCha8Rng;

use super::choice::Ranked;
use super::free_slots;
use crate::model::FallbackCause;
use crate::strategy::candidate::Candidate;
use crate::strategy::load;

/// `gnp-topK`: draws one of the k nearest agents, to spread the load (section 2.2.3 of the paper
/// that the README cites). If some of the k agents have a free slot, full agents are left out.
pub(in crate::strategy) fn choose(ordered: &[Candidate], k: usize, rng: &mut ChaCha8Rng) -> Ranked {
    let ranked = load::rank::least(ordered, k, Candidate::distance);
    let drawn = free_slots::draw(&ranked, rng).ok_or(FallbackCause::NoDistance)?.agent;
    Ok((drawn, ranked))
}
