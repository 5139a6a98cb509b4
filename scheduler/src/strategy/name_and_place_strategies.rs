//! The strategies that use the site's name (`hash`, `kademlia` and `domain`), and those that use
//! positions and addresses (`geographic` and `prefix`).
//!
//! The strategies that use the name ignore distances, and all but `kademlia` ignore load. An
//! agent's key is derived from the agent's number, so that it is the same on every scheduler. The
//! strategies that use positions and addresses break ties at random, among candidates with a free
//! slot if there are any.

use std::cmp::Reverse;
use std::net::IpAddr;

use rand::rngs::ChaCha8Rng;
use sha2::{Digest as _, Sha256};

use crate::model::FallbackCause::{NoAddress, NoAgentPosition, NoPosition, NoSuffix, NothingShared};
use crate::model::geo::Direction;
use crate::model::seed::spread;

use super::candidate_and_site::{Candidate, LISTED, Site, least};
use super::distance_strategies::{NOBODY, Ranked, draw, first, first_with_room};

/// `hash`: chooses the agent with the highest hash of site name and agent number (rendezvous
/// hashing: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998). If an
/// agent leaves, only its sites move. A new agent gets an equal share of all sites.
pub(super) fn hash(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
    first(rendezvous(site.host, ordered, |_| true), NOBODY)
}

/// `domain`: chooses one agent for all sites of a public suffix, such as `.edu.cn`, by rendezvous
/// hashing of the suffix (section 1 of the paper that the README cites, "by the suffix of the
/// domain name"). If the suffix belongs to a country with agents, one of these agents is chosen.
pub(super) fn domain(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
    let suffix = suffix(site.host).ok_or(NoSuffix)?;
    let country = country(suffix);
    let there = |candidate: &Candidate| country.is_some() && candidate.home.country == country;
    let compatriots = rendezvous(suffix, ordered, there);
    first(if compatriots.is_empty() { rendezvous(suffix, ordered, |_| true) } else { compatriots }, NOBODY)
}

/// `kademlia`: chooses the agent whose key has the smallest XOR distance to the site's key. Keys
/// are numbers of 160 bits (section 1.2 of paper 000 and section 1.1 of paper 003; see
/// docs/evaluation/load-levels.md).
/// Of the three nearest agents, the first with a free slot is chosen, or the nearest if all are
/// full.
pub(super) fn kademlia(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
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

/// The candidates with the highest hashes for a name, among the candidates that `may` accepts.
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

/// The public suffix of a host's name (public suffix list); `None` if the host is an address.
fn suffix(host: &str) -> Option<&str> {
    let is_address = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
    if is_address { None } else { psl::suffix_str(host) }
}

/// The country of a suffix: its last label in capitals, if the label has two letters.
fn country(suffix: &str) -> Option<[u8; 2]> {
    let last = suffix.rsplit('.').next()?.to_ascii_uppercase();
    let country: [u8; 2] =
        last.as_bytes().try_into().ok().filter(|two: &[u8; 2]| two.iter().all(u8::is_ascii_uppercase))?;
    // Only the label of the United Kingdom differs from the country's code (ISO 3166-1).
    Some(if country == *b"UK" { *b"GB" } else { country })
}

/// Distances that differ by less than this count as equal, because positions are known only to the
/// precision of a city.
const SAME_PLACE_KM: f64 = 25.0;

/// `geographic`: chooses the geographically nearest agent, or an agent that is at most
/// [`SAME_PLACE_KM`] farther (section 1 of the paper that the README cites, "by geographic
/// position").
pub(super) fn geographic(site: &Site<'_>, ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Ranked {
    let site = Direction::from(site.position.ok_or(NoPosition)?);
    let cosine = |candidate: &Candidate| candidate.home.direction.map(|direction| direction.cosine(site));
    let nearest = ordered.iter().filter_map(cosine).max_by(f64::total_cmp).ok_or(NoAgentPosition)?;
    let least = Direction::widened(nearest, SAME_PLACE_KM);
    let there = |candidate: &&Candidate| cosine(candidate).is_some_and(|cosine| cosine >= least);
    let ranked: Vec<Candidate> = ordered.iter().filter(there).copied().collect();
    let drawn = draw(&ranked, rng).ok_or(NoAgentPosition)?.agent;
    Ok((drawn, ranked))
}

/// `prefix`: chooses the agent whose address has the longest common prefix with the site's address
/// (section 1 of the paper that the README cites, "by IP address"). Addresses of different families
/// have no common prefix.
pub(super) fn prefix(site: &Site<'_>, ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Ranked {
    let site = site.address.ok_or(NoAddress)?.to_canonical();
    let shared =
        |candidate: &Candidate| candidate.home.address.map_or(0, |address| shared(address.to_canonical(), site));
    let longest = ordered.iter().map(shared).max().filter(|bits| *bits > 0).ok_or(NothingShared)?;
    let ranked: Vec<Candidate> = ordered.iter().filter(|candidate| shared(candidate) == longest).copied().collect();
    let drawn = draw(&ranked, rng).ok_or(NothingShared)?.agent;
    Ok((drawn, ranked))
}

/// The length in bits of the common prefix of two addresses.
fn shared(one: IpAddr, other: IpAddr) -> u32 {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    }
}
