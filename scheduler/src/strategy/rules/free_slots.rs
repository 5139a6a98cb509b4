//! Chooses which of a strategy's candidates gets a task if some of them have no free slot.

use rand::rngs::ChaCha8Rng;
use rand::seq::IndexedRandom;

use crate::strategy::candidate::Candidate;

/// Draws with equal probability among the candidates with a free slot. If all candidates are full,
/// draws among the candidates where the task would end first.
pub(super) fn draw<'a>(ranked: &'a [Candidate], rng: &mut ChaCha8Rng) -> Option<&'a Candidate> {
    let open: Vec<&Candidate> = ranked.iter().filter(|candidate| candidate.level().has_room()).collect();
    if !open.is_empty() {
        return open.choose(rng).copied();
    }
    let soonest = ranked.iter().map(Candidate::next_ends).min()?;
    let soon: Vec<&Candidate> = ranked.iter().filter(|candidate| candidate.next_ends() == soonest).collect();
    soon.choose(rng).copied()
}

/// The first of `ranked` with a free slot; if all are full, the first of `ranked`.
pub(super) fn first_with_room(ranked: &[Candidate]) -> Option<&Candidate> {
    ranked.iter().find(|candidate| candidate.level().has_room()).or_else(|| ranked.first())
}
