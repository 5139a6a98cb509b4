//! `domain`: the sites of one suffix go to one agent (the paper 1, "by the suffix of the domain name": `.edu.cn`, `.org`). Where the
//! suffix is a country's and agents stand in that country, to one of those. Which one is by rendezvous of the suffix, so that it is the
//! same as long as it is there. As the paper says of it, loads are as uneven as suffixes are: nothing is done about that.

use std::net::IpAddr;

use super::hash::rendezvous;
use super::{Candidate, NOBODY, Ranked, Site, first};
use crate::model::FallbackCause::NoSuffix;

/// Chooses by the suffix of the site's host.
pub(super) fn choose(site: &Site<'_>, ordered: &[Candidate]) -> Ranked {
    let suffix = suffix(site.host).ok_or(NoSuffix)?;
    let country = country(suffix);
    let there = |candidate: &Candidate| country.is_some() && candidate.home.country == country;
    let compatriots = rendezvous(suffix, ordered, there);
    first(if compatriots.is_empty() { rendezvous(suffix, ordered, |_| true) } else { compatriots }, NOBODY)
}

/// The part of the name under which domains are registered (public suffix list).
fn suffix(host: &str) -> Option<&str> {
    let is_address = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
    if is_address { None } else { psl::suffix_str(host) }
}

/// The country of a suffix's last label: two letters are always one's.
fn country(suffix: &str) -> Option<[u8; 2]> {
    let last = suffix.rsplit('.').next()?.to_ascii_uppercase();
    let country: [u8; 2] =
        last.as_bytes().try_into().ok().filter(|two: &[u8; 2]| two.iter().all(u8::is_ascii_uppercase))?;
    // The one country whose domain is not its code.
    Some(if country == *b"UK" { *b"GB" } else { country })
}
