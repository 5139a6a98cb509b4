//! The strategies that use the site's name: `hash`, `kademlia` and `domain`. They ignore load and
//! network, except that `kademlia` skips full agents. `domain` prefers agents in the country of
//! the host's public suffix. An agent's key is derived from its number, so it is the same on
//! every scheduler.

use std::cmp::Reverse;
use std::net::IpAddr;

use sha2::{Digest as _, Sha256};

use crate::model::FallbackCause::NoSuffix;
use crate::model::seed::spread;

use crate::strategy::load::first_with_room;
use crate::strategy::load::rank::{LISTED, least};
use crate::strategy::{Candidate, NOBODY, Ranked, Site, first};

/// `hash`: chooses the agent with the highest hash of site name and agent number (rendezvous
/// hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998). If an
/// agent leaves, only its sites move; a new agent gets an equal share.
pub(in crate::strategy) fn hash(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
    first(rendezvous(site.host, ordered, |_| true), NOBODY)
}

/// `domain`: all sites of a suffix go to one agent (the paper 1, "by the suffix of the
/// domain name": `.edu.cn`, `.org`), by rendezvous hashing of the suffix. If the suffix
/// belongs to a country with agents, one of these agents is chosen. Suffixes differ much in
/// size, so loads are uneven.
pub(in crate::strategy) fn domain(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
    let suffix = suffix(site.host).ok_or(NoSuffix)?;
    let country = country(suffix);
    let there = |candidate: &Candidate| country.is_some() && candidate.home.country == country;
    let compatriots = rendezvous(suffix, ordered, there);
    first(if compatriots.is_empty() { rendezvous(suffix, ordered, |_| true) } else { compatriots }, NOBODY)
}

/// `kademlia`: chooses the agent whose key has the smallest XOR distance to the site's key. Both
/// keys are numbers of 160 bits (papers 000, 1.2, and 003, 1.1). As in the papers, a full agent's
/// work goes to its neighbours: of the three nearest agents, the first with a free slot is chosen,
/// or the nearest if all are full.
pub(in crate::strategy) fn kademlia(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
    let digest = digest(site.host);
    let key = (word(&digest, 0), word(&digest, 8), high(word(&digest, 16)));
    let apart = |candidate: &Candidate| {
        let one = spread(candidate.agent.get().cast_unsigned());
        let two = spread(one);
        // The XOR distance of 160 bits, most significant bits first.
        (key.0 ^ one, key.1 ^ two, key.2 ^ high(spread(two)))
    };
    let ranked = least(ordered, LISTED, |candidate| Some(apart(candidate)));
    let agent = first_with_room(&ranked).ok_or(NOBODY)?.agent;
    Ok((agent, ranked))
}

/// The candidates with the highest hashes for this name, among those that `may` accepts.
fn rendezvous(name: &str, ordered: &[Candidate], may: impl Fn(&Candidate) -> bool) -> Vec<Candidate> {
    let key = word(&digest(name), 0);
    let height = |candidate: &Candidate| spread(key ^ spread(candidate.agent.get().cast_unsigned()));
    least(ordered, LISTED, |candidate| may(candidate).then(|| Reverse(height(candidate))))
}

fn digest(name: &str) -> [u8; 32] {
    Sha256::digest(name.as_bytes()).into()
}

/// Eight bytes of a digest, from index `from`, as a number.
fn word(digest: &[u8; 32], from: usize) -> u64 {
    digest[from..].iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn high(word: u64) -> u32 {
    u32::try_from(word >> 32).unwrap_or(u32::MAX)
}

/// The public suffix of the host's name (public suffix list).
fn suffix(host: &str) -> Option<&str> {
    let is_address = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
    if is_address { None } else { psl::suffix_str(host) }
}

/// The country of a suffix, from its last label: every top-level label of two letters is
/// a country's.
fn country(suffix: &str) -> Option<[u8; 2]> {
    let last = suffix.rsplit('.').next()?.to_ascii_uppercase();
    let country: [u8; 2] =
        last.as_bytes().try_into().ok().filter(|two: &[u8; 2]| two.iter().all(u8::is_ascii_uppercase))?;
    // The label of the United Kingdom is the only one that differs from the country's code.
    Some(if country == *b"UK" { *b"GB" } else { country })
}
