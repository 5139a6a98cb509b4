//! `random`: any agent with room, evenly. The yardstick, and what is left when no distance is known.

use rand_chacha::ChaCha8Rng;

use crate::model::Strategy;

use super::load::draw;
use super::{Candidate, Choice};

/// Draws one of `ordered`; `None` when it is empty.
pub(super) fn choose(ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Option<Choice> {
    let drawn = draw(ordered, rng)?;
    Some(Choice { agent: drawn.agent, candidates: vec![*drawn], strategy: Strategy::Random, fallback: None })
}
