//! The strategies that use positions and addresses: `geographic` and `prefix`. Ties are broken at
//! random, among candidates with a free slot if there are any.

use std::net::IpAddr;

use rand::rngs::ChaCha8Rng;

use crate::model::FallbackCause::{NoAddress, NoAgentPosition, NoPosition, NothingShared};
use crate::model::geo::Direction;

use super::choice::Ranked;
use super::free_slots::draw;
use crate::strategy::candidate::Candidate;
use crate::strategy::site_facts::Site;

/// Distances that differ by less than this count as equal, because positions are known only to the
/// precision of a city.
const SAME_PLACE_KM: f64 = 25.0;

/// `geographic`: chooses the geographically nearest agent, or an agent that is at most
/// [`SAME_PLACE_KM`] farther (section 1 of the paper that the README cites, "by geographic
/// position").
pub(in crate::strategy) fn geographic(site: &Site<'_>, ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Ranked {
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
pub(in crate::strategy) fn prefix(site: &Site<'_>, ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Ranked {
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
