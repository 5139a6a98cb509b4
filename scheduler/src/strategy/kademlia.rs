//! `kademlia`: the agent whose identifier is nearest to the site's key, where distance is the XOR of two numbers of 160 bits (papers 000,
//! 1.2, and 003, 1.1). As there, a full agent's work goes to those next to it: of the three nearest the first with room, or the nearest
//! where none has any.
//!
//! Agents draw no identifiers here: an agent's is its number, spread over 160 bits, so that it is the same on every scheduler.

use sha2::{Digest as _, Sha256};

use crate::seed::spread;

use super::load::first_with_room;
use super::rank::{LISTED, least};
use super::{Candidate, NOBODY, Ranked, Site};

/// 160 bits, the high ones first.
type Id = (u64, u64, u32);

/// Chooses by the site's host.
pub(super) fn choose(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
    let key = key(site.host);
    let ranked = least(ordered, LISTED, |candidate| Some(xor(key, id(candidate))));
    let agent = first_with_room(&ranked).ok_or(NOBODY)?.agent;
    Ok((agent, ranked))
}

fn xor(one: Id, other: Id) -> Id {
    (one.0 ^ other.0, one.1 ^ other.1, one.2 ^ other.2)
}

/// The first 160 bits of the name's digest.
fn key(name: &str) -> Id {
    let digest: [u8; 32] = Sha256::digest(name.as_bytes()).into();
    let word = |from: usize| digest[from..].iter().take(8).fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
    (word(0), word(8), high(word(16)))
}

fn id(candidate: &Candidate) -> Id {
    let first = spread(candidate.agent.get().cast_unsigned());
    let second = spread(first);
    (first, second, high(spread(second)))
}

fn high(word: u64) -> u32 {
    u32::try_from(word >> 32).unwrap_or(u32::MAX)
}
