//! Evidence from the addresses that landmarks resolved.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::stats::count;

use super::evidence::AnycastEvidence;

/// The lengths, in bits, of the longest IPv4 and IPv6 prefixes that are routed throughout the
/// Internet.
const PREFIX_V4: u32 = 24;
const PREFIX_V6: u32 = 48;
/// Confidence that there are several locations if the addresses are in two prefixes. This
/// confidence is an estimate, and is far below 1, because one data centre may have several
/// prefixes.
const TWO_PREFIXES: f64 = 0.5;
/// Confidence that there are several locations if each landmark's address is in a different prefix;
/// an estimate. For fewer prefixes, the confidence is interpolated between [`TWO_PREFIXES`] and
/// this value.
const EVERY_LANDMARK_ITS_OWN: f64 = 0.9;
/// Confidence that there are several locations if different addresses are in one prefix. This
/// confidence is low, because different addresses in one prefix often come from round-robin DNS
/// alone.
const ONE_PREFIX: f64 = 0.1;

/// The confidence that there are several locations, and the evidence; `None` if the landmarks
/// resolved at most one address of each family (IPv4 and IPv6). `seen` contains the address that
/// each landmark resolved. IPv4 and IPv6 addresses are not compared with each other, because most
/// hosts have both kinds.
pub(super) fn evidence(seen: impl Iterator<Item = IpAddr>) -> Option<(f64, AnycastEvidence)> {
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = seen.map(|address| address.to_canonical()).partition(IpAddr::is_ipv4);
    [v4, v6].iter().filter_map(|family| of_family(family)).max_by(|a, b| a.0.total_cmp(&b.0))
}

fn of_family(seen: &[IpAddr]) -> Option<(f64, AnycastEvidence)> {
    let addresses: BTreeSet<IpAddr> = seen.iter().copied().collect();
    let prefixes: BTreeSet<u128> = addresses.iter().copied().map(prefix).collect();
    if prefixes.len() > 1 {
        let first = *addresses.first()?;
        let other = addresses.iter().copied().find(|address| prefix(*address) != prefix(first))?;
        let spread = part(prefixes.len() - 2, seen.len().saturating_sub(2));
        let confidence = TWO_PREFIXES + (EVERY_LANDMARK_ITS_OWN - TWO_PREFIXES) * spread;
        let (prefixes, landmarks) = (prefixes.len(), seen.len());
        return Some((confidence, AnycastEvidence::Prefixes { prefixes, landmarks, examples: (first, other) }));
    }
    (addresses.len() > 1)
        .then_some((ONE_PREFIX, AnycastEvidence::Addresses { addresses: addresses.len(), landmarks: seen.len() }))
}

/// The first [`PREFIX_V4`] or [`PREFIX_V6`] bits of an address, as a number.
fn prefix(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits() >> (u32::BITS - PREFIX_V4)),
        IpAddr::V6(address) => address.to_bits() >> (u128::BITS - PREFIX_V6),
    }
}

/// Returns `some / whole`; 0 if `whole` is 0.
fn part(some: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { count(some) / count(whole) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confidence(addresses: &[&str]) -> Option<f64> {
        let seen = addresses.iter().map(|address| address.parse().unwrap());
        evidence(seen).map(|(confidence, _)| confidence)
    }

    #[test]
    fn one_address_or_one_of_each_family_says_nothing() {
        assert_eq!(confidence(&[]), None);
        assert_eq!(confidence(&["192.0.2.1", "192.0.2.1"]), None);
        assert_eq!(confidence(&["192.0.2.1", "::ffff:192.0.2.1"]), None);
        assert_eq!(confidence(&["192.0.2.1", "2001:db8::1", "192.0.2.1"]), None);
    }

    #[test]
    fn a_prefix_for_every_landmark_says_most_and_round_robin_least() {
        let robin = confidence(&["192.0.2.1", "192.0.2.2", "192.0.2.3"]).unwrap();
        let two = confidence(&["192.0.2.1", "198.51.100.1", "192.0.2.1"]).unwrap();
        let own = confidence(&["192.0.2.1", "198.51.100.1", "203.0.113.1"]).unwrap();
        assert!(robin < two && two < own && own < 1.0, "{robin} {two} {own}");
        assert!(confidence(&["2001:db8:1::1", "2001:db8:2::1"]).unwrap() >= TWO_PREFIXES);
        assert!(confidence(&["2001:db8:1::1", "2001:db8:1:5::1"]).unwrap() < TWO_PREFIXES);
    }
}
