//! `random`: draws one of all agents.

use rand::rngs::ChaCha8Rng;

use super::choice::Choice;
use super::free_slots;
use crate::model::Strategy;
use crate::strategy::candidate::Candidate;

/// `random`: draws among all agents with a free slot, with equal probability. If all agents are
/// full, draws among the agents where the task would end first.
pub(in crate::strategy) fn choose(ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Option<Choice> {
    let drawn = free_slots::draw(ordered, rng)?;
    Some(Choice { agent: drawn.agent, candidates: vec![*drawn], strategy: Strategy::Random, fallback: None })
}
