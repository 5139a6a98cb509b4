//! `hash`: the agent for which the site's name and the agent's number hash highest (rendezvous hashing: Thaler and Ravishankar, "Using
//! name-based mappings to increase hit rates", 1998). The same site goes to the same agent as long as that is there; when one leaves
//! only its own sites move, and one that comes takes its even share and nothing else moves. Load and network count for nothing.

use std::cmp::Reverse;

use sha2::{Digest as _, Sha256};

use crate::seed::spread;

use super::rank::{LISTED, least};
use super::{Candidate, NOBODY, Ranked, Site, first};

/// Chooses by the site's host, and lists who would have it next.
pub(super) fn choose(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
    first(rendezvous(site.host, ordered, |_| true), NOBODY)
}

/// Those among whom `may` for which this name hashes highest.
pub(super) fn rendezvous(name: &str, ordered: &[Candidate], may: impl Fn(&Candidate) -> bool) -> Vec<Candidate> {
    let key = key(name);
    let height = |candidate: &Candidate| spread(key ^ spread(candidate.agent.get().cast_unsigned()));
    least(ordered, LISTED, |candidate| may(candidate).then(|| Reverse(height(candidate))))
}

/// The name as a number that says nothing of the name.
fn key(name: &str) -> u64 {
    let digest: [u8; 32] = Sha256::digest(name.as_bytes()).into();
    digest.iter().take(8).fold(0, |key, byte| key << 8 | u64::from(*byte))
}
