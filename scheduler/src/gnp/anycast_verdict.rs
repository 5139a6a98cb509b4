//! Judges whether a site has one location or several (anycast, CDN, GeoDNS), by the evidence of
//! light, of the map and of addresses, and puts the evidence into words.
//!
//! There are three independent kinds of evidence, strongest first:
//!
//! 1. *Light.* If a host has one location, the paths from two landmarks to the host together form a
//!    path between the landmarks. If the sum of the two round trips is less than light in fibre
//!    needs for a round trip between the landmarks' positions, the host certainly has at least two
//!    locations.
//! 2. *The map.* Its score (`anycast_score_and_limit`) is a weighted sum of the log odds that the
//!    host has several locations instead of one, and of how far the round trips of pairs of
//!    landmarks to the host add up to less than the distance between the two landmarks. A host is
//!    suspect if its score is more than two standard deviations above the agents' mean score. The
//!    agents show which scores are normal, because each agent certainly has one location. A fixed
//!    limit would not work, because networks differ in how often routing violates the triangle
//!    inequality.
//! 3. *Addresses.* If landmarks resolved addresses in different prefixes (/24, /48), DNS gave them
//!    different answers. Several addresses in one prefix only strengthen other evidence, because
//!    they often come from round-robin DNS alone.
//!
//! The combined result is a confidence: the probability that the host has several locations,
//! assuming that half of all hosts do.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::gnp::{Embedding, Mesh};
use crate::model::geo::{Position, great_circle_km, least_round_trip};
use crate::model::stats::count;
use crate::model::{AgentId, Rtt};

use super::anycast_score_and_limit::MapJudge;

/// A landmark's observation of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    pub landmark: AgentId,
    pub rtt: Rtt,
    /// The address to which the landmark resolved the host's name; `None` if unknown.
    pub address: Option<IpAddr>,
}

/// A site that may stand in several places.
#[derive(Debug, Clone, PartialEq)]
pub struct SuspectedSite {
    /// The confidence, from 0 to 1; 1 is certain.
    pub confidence: f64,
    /// The evidence in words; never empty.
    pub evidence: String,
}

/// Judges hosts by the landmarks' measurements. A detector is valid for one epoch.
#[derive(Debug, Clone, Default)]
pub struct AnycastDetector {
    positions: BTreeMap<AgentId, Position>,
    map: Option<MapJudge>,
}

impl AnycastDetector {
    /// Builds a detector that uses only light and addresses, not the map.
    pub const fn without_map(positions: BTreeMap<AgentId, Position>) -> Self {
        Self { positions, map: None }
    }

    /// Builds a detector from an epoch's map and the mesh to which the map was fitted. Equal
    /// arguments give equal detectors.
    pub fn new(embedding: &Embedding, mesh: &Mesh, positions: BTreeMap<AgentId, Position>) -> Self {
        Self { positions, map: MapJudge::new(embedding, mesh) }
    }

    /// Judges one host; `None` if there is not enough evidence of several locations. If a landmark
    /// made several observations, only the last one is used. `name` returns an agent's name.
    pub fn judge(&self, observations: &[Observation], name: impl Fn(AgentId) -> String) -> Option<SuspectedSite> {
        let once: BTreeMap<AgentId, Observation> = observations.iter().map(|one| (one.landmark, *one)).collect();
        let seen = once.values().map(|one| (one.landmark, one.rtt));
        let placed = |one: &Observation| Some((one.landmark, one.rtt, *self.positions.get(&one.landmark)?));
        let placed: Vec<(AgentId, Rtt, Position)> = once.values().filter_map(placed).collect();
        let light = light_evidence(&placed, &name);
        let map = self.map.as_ref().and_then(|map| map.evidence(seen, &name));
        let addresses = address_evidence(once.values().filter_map(|one| one.address));
        // Different addresses in one prefix only strengthen other evidence.
        let prefixes_differ = addresses.as_ref().is_some_and(|addresses| addresses.prefixes_differ);
        if light.is_none() && map.is_none() && !prefixes_differ {
            return None;
        }
        let addresses = addresses.map(|addresses| (addresses.confidence, addresses.sentence));
        let (confidences, sentences): (Vec<f64>, Vec<String>) = [light, map, addresses].into_iter().flatten().unzip();
        let doubt: f64 = confidences.into_iter().map(|confidence| 1.0 - confidence).product();
        Some(SuspectedSite { confidence: 1.0 - doubt, evidence: sentences.join("; ") })
    }
}

/// The confidence that a host has several locations if a pair of landmarks is too fast for light.
const CONFIDENCE: f64 = 1.0;

/// Compares the sum of two landmarks' round trips to the host with the time that light in fibre
/// needs for a round trip between the landmarks. Returns the confidence, and a sentence about the
/// pair of landmarks whose sum is farthest below the time that light needs; `None` if no pair's sum
/// is too short.
fn light_evidence(placed: &[(AgentId, Rtt, Position)], name: impl Fn(AgentId) -> String) -> Option<(f64, String)> {
    let pairs = placed.iter().enumerate().flat_map(|(i, a)| placed[..i].iter().map(move |b| (b, a)));
    let short = pairs.filter_map(|(a, b)| {
        let (&(_, to_a, at), &(_, to_b, bt)) = (a, b);
        let sum = to_a.as_duration() + to_b.as_duration();
        let least = least_round_trip(at, bt);
        let sum_rtt = Rtt::try_new(sum).ok()?;
        (sum < least).then(|| (least.saturating_sub(sum), sum_rtt, least, a, b))
    });
    let (_, sum, least, &(a, _, at), &(b, _, bt)) = short.max_by_key(|(short, ..)| *short)?;
    let (a, b, least_ms, way_km) = (name(a), name(b), least.as_secs_f64() * 1e3, great_circle_km(at, bt));
    let evidence = format!(
        "{a} and {b} measure {sum} to it in sum, but light in fibre needs {least_ms:.1} ms for the {way_km:.0} km \
         between them"
    );
    Some((CONFIDENCE, evidence))
}

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

/// Evidence that landmarks resolved different addresses.
struct AddressEvidence {
    /// The confidence that there are several locations.
    confidence: f64,
    prefixes_differ: bool,
    sentence: String,
}

/// The evidence of the addresses; `None` if the landmarks resolved at most one address of each
/// family (IPv4 and IPv6). `seen` contains the address that each landmark resolved. IPv4 and IPv6
/// addresses are not compared with each other, because most hosts have both kinds.
fn address_evidence(seen: impl Iterator<Item = IpAddr>) -> Option<AddressEvidence> {
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = seen.map(|address| address.to_canonical()).partition(IpAddr::is_ipv4);
    [v4, v6].iter().filter_map(|family| of_family(family)).max_by(|a, b| a.confidence.total_cmp(&b.confidence))
}

fn of_family(seen: &[IpAddr]) -> Option<AddressEvidence> {
    let addresses: BTreeSet<IpAddr> = seen.iter().copied().collect();
    let prefixes: BTreeSet<u128> = addresses.iter().copied().map(prefix).collect();
    let landmarks = seen.len();
    if prefixes.len() > 1 {
        let first = *addresses.first()?;
        let other = addresses.iter().copied().find(|address| prefix(*address) != prefix(first))?;
        let spread = part(prefixes.len() - 2, landmarks.saturating_sub(2));
        let confidence = TWO_PREFIXES + (EVERY_LANDMARK_ITS_OWN - TWO_PREFIXES) * spread;
        let prefixes = prefixes.len();
        let sentence =
            format!("{landmarks} landmarks were sent to {prefixes} different networks, {first} and {other} among them");
        return Some(AddressEvidence { confidence, prefixes_differ: true, sentence });
    }
    let addresses = addresses.len();
    let sentence = || format!("{landmarks} landmarks were sent to {addresses} addresses of one network");
    (addresses > 1).then(|| AddressEvidence { confidence: ONE_PREFIX, prefixes_differ: false, sentence: sentence() })
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
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use crate::gnp::Placement;
    use crate::gnp::fixture::{agent, hosts, mesh_of, rtt};
    use crate::gnp::mesh_and_distance::distance;
    use crate::model::EmbeddingEpoch;

    use super::*;

    const EPOCH: EmbeddingEpoch = EmbeddingEpoch::new(3);
    const AGENTS: usize = 16;
    const LANDMARKS: usize = 9;

    /// A map of agents, and a mesh with exactly the distances of this map.
    fn world(seed: u64) -> (Embedding, Mesh) {
        let coordinates = hosts(AGENTS, 2, seed);
        let mesh = mesh_of(&coordinates, 1.0);
        let placement = |coordinate: Vec<f64>| Placement { epoch: EPOCH, coordinate, fit_error: 0.0 };
        let agents = coordinates.into_iter().enumerate().map(|(i, at)| (agent(i), placement(at))).collect();
        let landmarks = (0..LANDMARKS).map(agent).collect();
        (Embedding::from_parts(EPOCH, 2, landmarks, agents, 0.0).unwrap(), mesh)
    }

    /// The landmarks' observations of a host with these locations.
    fn seen(map: &Embedding, places: &[[f64; 3]]) -> Vec<Observation> {
        let nearest = |landmark: &AgentId| {
            let at = &map.placement(*landmark).unwrap().coordinate;
            places.iter().map(|place| distance(place, at)).fold(f64::INFINITY, f64::min)
        };
        let observation =
            |landmark: &AgentId| Observation { landmark: *landmark, rtt: rtt(nearest(landmark)), address: None };
        map.landmarks().iter().map(observation).collect()
    }

    fn with_addresses(mut seen: Vec<Observation>, addresses: &[&str]) -> Vec<Observation> {
        for (one, address) in seen.iter_mut().zip(addresses) {
            one.address = Some(address.parse().unwrap());
        }
        seen
    }

    fn name(agent: AgentId) -> String {
        format!("a{agent}")
    }

    #[test]
    fn a_host_in_one_place_is_not_suspect_and_one_at_every_corner_is() {
        for seed in 0..5 {
            let (map, mesh) = world(seed);
            let detector = AnycastDetector::new(&map, &mesh, BTreeMap::new());
            for at in [[20.0, 30.0, 2.0], [100.0, 100.0, 40.0], [190.0, 10.0, 5.0]] {
                assert_eq!(detector.judge(&seen(&map, &[at]), name), None, "seed {seed}, {at:?}");
            }
            let corners = [[10.0, 10.0, 1.0], [190.0, 10.0, 1.0], [10.0, 190.0, 1.0], [190.0, 190.0, 1.0]];
            let SuspectedSite { confidence, evidence } = detector.judge(&seen(&map, &corners), name).unwrap();
            assert!(confidence > 0.5 && confidence < 1.0, "{confidence}");
            assert!(evidence.starts_with("several places explain the round trips better than one"), "{evidence}");
        }
    }

    #[test]
    fn what_beats_light_is_certain() {
        let position = |latitude, longitude| Position::try_new(latitude, longitude).unwrap();
        let (beijing, frankfurt) = (position(39.9, 116.4), position(50.1, 8.7));
        let positions = BTreeMap::from([(agent(1), beijing), (agent(2), frankfurt)]);
        let detector = AnycastDetector::without_map(positions);
        let seen = |millis: f64| [1, 2, 3].map(|i| Observation { landmark: agent(i), rtt: rtt(millis), address: None });
        let SuspectedSite { confidence, evidence } = detector.judge(&seen(20.0), name).unwrap();
        assert!((confidence - 1.0).abs() < f64::EPSILON);
        let beaten = "a1 and a2 measure 40.0 ms to it in sum, but light in fibre needs 7";
        assert!(evidence.starts_with(beaten), "{evidence}");
        assert_eq!(detector.judge(&seen(40.0), name), None, "80 ms is enough for Beijing and Frankfurt");
    }

    #[test]
    fn different_networks_are_suspect_and_round_robin_alone_is_not() {
        let (map, _) = world(1);
        let detector = AnycastDetector::without_map(BTreeMap::new());
        let host = seen(&map, &[[20.0, 30.0, 2.0]]);
        let robin = with_addresses(host.clone(), &["192.0.2.1", "192.0.2.2", "192.0.2.1"]);
        assert_eq!(detector.judge(&robin, name), None);
        let apart = with_addresses(host, &["192.0.2.1", "198.51.100.7", "192.0.2.1"]);
        let SuspectedSite { evidence, .. } = detector.judge(&apart, name).unwrap();
        assert_eq!(evidence, "3 landmarks were sent to 2 different networks, 192.0.2.1 and 198.51.100.7 among them");
    }

    #[test]
    fn few_agents_or_few_measurements_leave_the_map_out() {
        let (map, mesh) = world(2);
        let detector = AnycastDetector::new(&map, &mesh, BTreeMap::new());
        let corners = [[10.0, 10.0, 1.0], [190.0, 10.0, 1.0], [10.0, 190.0, 1.0], [190.0, 190.0, 1.0]];
        let seen = seen(&map, &corners);
        assert_ne!(detector.judge(&seen, name), None);
        let few = &seen[..crate::gnp::anycast_score_and_limit::FEWEST_MEASURED - 1];
        assert_eq!(detector.judge(few, name), None);
        assert_eq!(detector.judge(&[], name), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn any_measurements_get_a_verdict_that_their_order_does_not_change(
            micros in proptest::collection::vec(1_i64..600_000_000, LANDMARKS),
            seed in any::<u64>(),
        ) {
            let (map, mesh) = world(seed % 4);
            let detector = AnycastDetector::new(&map, &mesh, BTreeMap::new());
            let observation = |(i, &us): (usize, &i64)| {
                Observation { landmark: agent(i), rtt: Rtt::try_from_micros(us).unwrap(), address: None }
            };
            let mut seen: Vec<Observation> = micros.iter().enumerate().map(observation).collect();
            let verdict = detector.judge(&seen, name);
            if let Some(SuspectedSite { confidence, evidence }) = &verdict {
                prop_assert!((0.0..=1.0).contains(confidence) && !evidence.is_empty());
            }
            seen.reverse();
            prop_assert_eq!(verdict, detector.judge(&seen, name));
        }
    }

    fn confidence(addresses: &[&str]) -> Option<f64> {
        let seen = addresses.iter().map(|address| address.parse().unwrap());
        address_evidence(seen).map(|evidence| evidence.confidence)
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
