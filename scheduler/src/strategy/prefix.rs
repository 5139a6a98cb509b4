//! `prefix`: the agent whose address has the longest prefix in common with the site's (the paper 1, "by IP address"). Where several have
//! as long a one they are drawn from, those with room before others. An address of another family has nothing in common.

use std::net::IpAddr;

use rand_chacha::ChaCha8Rng;

use super::load::draw;
use super::{Candidate, Ranked, Site};
use crate::model::FallbackCause::{NoAddress, NothingShared};

/// Chooses by the site's address.
pub(super) fn choose(site: &Site<'_>, ordered: &[Candidate], rng: &mut ChaCha8Rng) -> Ranked {
    let site = site.address.ok_or(NoAddress)?.to_canonical();
    let shared =
        |candidate: &Candidate| candidate.home.address.map_or(0, |address| shared(address.to_canonical(), site));
    let longest = ordered.iter().map(shared).max().filter(|bits| *bits > 0).ok_or(NothingShared)?;
    let ranked: Vec<Candidate> = ordered.iter().filter(|candidate| shared(candidate) == longest).copied().collect();
    let drawn = draw(&ranked, rng).ok_or(NothingShared)?.agent;
    Ok((drawn, ranked))
}

/// Bits at the beginning that two addresses have in common.
fn shared(one: IpAddr, other: IpAddr) -> u32 {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    }
}
