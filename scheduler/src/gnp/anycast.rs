//! Distinguishes sites in several locations (anycast, CDN, GeoDNS) from sites in one location.
//!
//! There are three independent kinds of evidence, strongest first:
//!
//! 1. *Light.* If a host has one location, the paths from two landmarks to the host together form a
//!    path between the landmarks. If the sum of the two round trips is less than light in fibre
//!    needs for a round trip between the landmarks' positions, the host certainly has at least two
//!    locations.
//! 2. *The map.* [`places`] computes the log odds that the host has several locations instead of
//!    one. [`pairs`] finds pairs of landmarks whose round trips to the host add up to less than the
//!    distance between the two landmarks. The score is a weighted sum of the results of [`places`]
//!    and [`pairs`]. A host is suspect if its score is more than two standard deviations above the
//!    agents' mean score. The agents show which scores are normal, because each agent certainly has
//!    one location. A fixed limit would not work, because networks differ in how often routing
//!    violates the triangle inequality.
//! 3. *Addresses.* If landmarks resolved addresses in different prefixes (/24, /48), DNS gave them
//!    different answers. Several addresses in one prefix only strengthen other evidence, because
//!    they often come from round-robin DNS alone.
//!
//! The combined result is a confidence: the probability that the host has several locations,
//! assuming that half of all hosts do.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::model::stats::count;
use crate::model::{AgentId, Rtt};

use super::{Embedding, Mesh};
use crate::model::geo::Position;

mod addresses;
mod evidence;
mod light;
mod pairs;
mod places;

pub use evidence::AnycastEvidence;
use places::DrawnPlaces;

/// Minimum number of measurements for a verdict based on the map, because one location often
/// explains three round trips well even if the host has several locations.
const FEWEST_MEASURED: usize = 4;
/// Minimum number of agents for a verdict based on the map, because fewer agents do not show which
/// scores are normal.
const FEWEST_AGENTS: usize = 8;
/// Maximum absolute log odds of several locations. Greater values would depend on the tails of the
/// density that is assumed for measurement errors, not on the host.
const ODDS_HELD: f64 = 8.0;
/// The log odds added by a pair of landmarks whose round trips to the host add up to 1/e of the
/// pair's distance.
const PAIR_WEIGHT: f64 = 5.0;
/// If more landmarks than this measured a host, each pair has less weight, because more pairs
/// violate the triangle inequality by chance.
const PAIRED_LANDMARKS: f64 = 9.0;
/// The limit for the score, in standard deviations above the agents' mean score. Of hosts with one
/// location, 3 to 5 % exceed the limit. A normal distribution would give 2 %, but the upper tail of
/// the scores is longer.
const DEVIATIONS: f64 = 2.0;
/// Lower bound of the limit that is computed with [`DEVIATIONS`]. At this score, several locations
/// are as likely as one.
const LEAST_LIMIT: f64 = 0.0;
/// The log odds of several locations for a host at the limit. `AT_LIMIT` and [`PER_UNIT`] are
/// fitted to hosts whose score exceeds the limit, in measured matrices of round trips. Half of
/// these hosts are simulated anycast hosts.
const AT_LIMIT: f64 = -1.15;
/// The increase in the log odds per unit of score beyond the limit.
const PER_UNIT: f64 = 0.5;

/// A landmark's observation of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Observation {
    pub landmark: AgentId,
    pub rtt: Rtt,
    /// The address to which the landmark resolved the host's name; `None` if unknown.
    pub address: Option<IpAddr>,
}

/// Whether a host has one location or several.
#[derive(Debug, Clone, PartialEq)]
pub enum LocationVerdict {
    /// There is not enough evidence of several locations.
    Unicast,
    /// The host may have several locations.
    Suspect {
        /// The probability that the host has several locations, from 0 to 1.
        confidence: f64,
        /// The evidence, strongest first; not empty.
        evidence: Vec<AnycastEvidence>,
    },
}

/// Judges hosts by the landmarks' measurements. A detector is valid for one epoch.
#[derive(Debug, Clone, Default)]
pub struct AnycastDetector {
    positions: BTreeMap<AgentId, Position>,
    map: Option<MapJudge>,
}

#[derive(Debug, Clone)]
struct MapJudge {
    mesh: Mesh,
    places: DrawnPlaces,
    /// A host whose score exceeds this limit is suspect.
    limit: f64,
}

impl AnycastDetector {
    /// Builds a detector that uses only light and addresses, not the map.
    pub const fn without_map(positions: BTreeMap<AgentId, Position>) -> Self {
        Self { positions, map: None }
    }

    /// Builds a detector from an epoch's map and the mesh to which the map was fitted. Equal
    /// arguments give equal detectors.
    pub fn new(embedding: &Embedding, mesh: &Mesh, positions: BTreeMap<AgentId, Position>) -> Self {
        if embedding.agents().len() < FEWEST_AGENTS {
            return Self::without_map(positions);
        }
        let places = DrawnPlaces::new(embedding, mesh);
        let mut judge = MapJudge { mesh: mesh.clone(), places, limit: LEAST_LIMIT };
        let scores: Vec<f64> = embedding
            .agents()
            .keys()
            .filter_map(|&agent| {
                let distance = |&landmark: &AgentId| Some((landmark, mesh.distance(agent, landmark)?));
                let measured: Vec<(AgentId, Rtt)> = embedding.landmarks().iter().filter_map(distance).collect();
                judge.score(&measured, Some(agent))
            })
            .collect();
        judge.limit = limit(&scores);
        Self { positions, map: Some(judge) }
    }

    /// Judges one host. If a landmark made several observations, only the last one is used.
    pub fn judge(&self, observations: &[Observation]) -> LocationVerdict {
        let once: BTreeMap<AgentId, Observation> = observations.iter().map(|one| (one.landmark, *one)).collect();
        let mut doubt = 1.0;
        let mut evidence = Vec::new();
        let mut suspect = false;
        let placed = |one: &Observation| Some((one.landmark, one.rtt, *self.positions.get(&one.landmark)?));
        let placed: Vec<(AgentId, Rtt, Position)> = once.values().filter_map(placed).collect();
        if let Some((confidence, light)) = light::evidence(&placed) {
            doubt *= 1.0 - confidence;
            suspect = true;
            evidence.push(light);
        }
        if let Some((beyond, map)) = self.map_evidence(&once) {
            doubt *= 1.0 - confidence(beyond);
            suspect = true;
            evidence.push(map);
        }
        if let Some((confidence, differ)) = addresses::evidence(once.values().filter_map(|one| one.address)) {
            doubt *= 1.0 - confidence;
            suspect |= matches!(differ, AnycastEvidence::Prefixes { .. });
            evidence.push(differ);
        }
        if suspect { LocationVerdict::Suspect { confidence: 1.0 - doubt, evidence } } else { LocationVerdict::Unicast }
    }

    fn map_evidence(&self, seen: &BTreeMap<AgentId, Observation>) -> Option<(f64, AnycastEvidence)> {
        let judge = self.map.as_ref()?;
        // Only landmarks' measurements are used, as for the agents' scores from which the limit is
        // computed.
        let landmarks = seen.values().filter(|one| judge.places.knows(one.landmark));
        let measured: Vec<(AgentId, Rtt)> = landmarks.map(|one| (one.landmark, one.rtt)).collect();
        let beyond = judge.score(&measured, None)? - judge.limit;
        if beyond <= 0.0 {
            return None;
        }
        let pairs = pairs::short(&judge.mesh, &measured);
        Some((beyond, AnycastEvidence::Map { beyond, pair: pairs.shortest, short_pairs: pairs.far_below }))
    }
}

impl MapJudge {
    /// Returns the score for several locations; `None` if there are too few measurements. If
    /// `without` is an agent, the score does not use places that were drawn around it.
    fn score(&self, measured: &[(AgentId, Rtt)], without: Option<AgentId>) -> Option<f64> {
        if measured.len() < FEWEST_MEASURED {
            return None;
        }
        let rows: Vec<(AgentId, f64)> =
            measured.iter().map(|&(landmark, rtt)| (landmark, rtt.as_millis_f64())).collect();
        let odds = self.places.log_odds(&rows, without).clamp(-ODDS_HELD, ODDS_HELD);
        let size = count(measured.len());
        let share = (PAIRED_LANDMARKS / size).min(1.0);
        Some(odds + PAIR_WEIGHT * share * pairs::short(&self.mesh, measured).total)
    }
}

fn limit(scores: &[f64]) -> f64 {
    let size = count(scores.len().max(1));
    let mean = scores.iter().sum::<f64>() / size;
    let variance = scores.iter().map(|score| (score - mean).powi(2)).sum::<f64>() / size;
    (mean + DEVIATIONS * variance.sqrt()).max(LEAST_LIMIT)
}

/// The probability of several locations for a score that exceeds the limit by `beyond`, assuming
/// that half of all hosts have several locations.
fn confidence(beyond: f64) -> f64 {
    1.0 / (1.0 + (-(AT_LIMIT + PER_UNIT * beyond)).exp())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::super::fixture::{agent, hosts, mesh_of, rtt};
    use super::*;
    use crate::gnp::Placement;
    use crate::gnp::distance::distance;
    use crate::model::EmbeddingEpoch;

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

    #[test]
    fn a_host_in_one_place_is_not_suspect_and_one_at_every_corner_is() {
        for seed in 0..5 {
            let (map, mesh) = world(seed);
            let detector = AnycastDetector::new(&map, &mesh, BTreeMap::new());
            for at in [[20.0, 30.0, 2.0], [100.0, 100.0, 40.0], [190.0, 10.0, 5.0]] {
                assert_eq!(detector.judge(&seen(&map, &[at])), LocationVerdict::Unicast, "seed {seed}, {at:?}");
            }
            let corners = [[10.0, 10.0, 1.0], [190.0, 10.0, 1.0], [10.0, 190.0, 1.0], [190.0, 190.0, 1.0]];
            let verdict = detector.judge(&seen(&map, &corners));
            let LocationVerdict::Suspect { confidence, evidence } = verdict else { panic!("seed {seed}: {verdict:?}") };
            assert!(confidence > 0.5 && confidence < 1.0, "{confidence}");
            let words = evidence[0].words(|agent| format!("a{agent}"));
            assert!(words.starts_with("several places explain the round trips better than one"), "{words}");
        }
    }

    #[test]
    fn what_beats_light_is_certain() {
        let position = |latitude, longitude| Position::try_new(latitude, longitude).unwrap();
        let (beijing, frankfurt) = (position(39.9, 116.4), position(50.1, 8.7));
        let positions = BTreeMap::from([(agent(1), beijing), (agent(2), frankfurt)]);
        let detector = AnycastDetector::without_map(positions);
        let seen = |millis: f64| [1, 2, 3].map(|i| Observation { landmark: agent(i), rtt: rtt(millis), address: None });
        let LocationVerdict::Suspect { confidence, evidence } = detector.judge(&seen(20.0)) else {
            panic!("not suspect")
        };
        assert!((confidence - 1.0).abs() < f64::EPSILON);
        let words = evidence[0].words(|agent| format!("a{agent}"));
        assert!(words.starts_with("a1 and a2 measure 40.0 ms to it in sum, but light in fibre needs 7"), "{words}");
        assert_eq!(detector.judge(&seen(40.0)), LocationVerdict::Unicast, "80 ms is enough for Beijing and Frankfurt");
    }

    #[test]
    fn different_networks_are_suspect_and_round_robin_alone_is_not() {
        let (map, _) = world(1);
        let detector = AnycastDetector::without_map(BTreeMap::new());
        let host = seen(&map, &[[20.0, 30.0, 2.0]]);
        let robin = with_addresses(host.clone(), &["192.0.2.1", "192.0.2.2", "192.0.2.1"]);
        assert_eq!(detector.judge(&robin), LocationVerdict::Unicast);
        let apart = with_addresses(host, &["192.0.2.1", "198.51.100.7", "192.0.2.1"]);
        let LocationVerdict::Suspect { evidence, .. } = detector.judge(&apart) else { panic!("not suspect") };
        let words = evidence[0].words(|agent| agent.to_string());
        assert_eq!(words, "3 landmarks were sent to 2 different networks, 192.0.2.1 and 198.51.100.7 among them");
    }

    #[test]
    fn few_agents_or_few_measurements_leave_the_map_out() {
        let (map, mesh) = world(2);
        let detector = AnycastDetector::new(&map, &mesh, BTreeMap::new());
        let corners = [[10.0, 10.0, 1.0], [190.0, 10.0, 1.0], [10.0, 190.0, 1.0], [190.0, 190.0, 1.0]];
        let seen = seen(&map, &corners);
        assert_ne!(detector.judge(&seen), LocationVerdict::Unicast);
        assert_eq!(detector.judge(&seen[..FEWEST_MEASURED - 1]), LocationVerdict::Unicast);
        assert_eq!(detector.judge(&[]), LocationVerdict::Unicast);
    }

    #[test]
    fn the_limit_goes_with_the_agents_and_never_below_even_odds() {
        assert!((limit(&[]) - LEAST_LIMIT).abs() < f64::EPSILON);
        assert!((limit(&[-5.0, -5.0, -4.0]) - LEAST_LIMIT).abs() < f64::EPSILON);
        assert!((limit(&[2.0, 4.0]) - 5.0).abs() < 1e-12);
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
            let verdict = detector.judge(&seen);
            if let LocationVerdict::Suspect { confidence, evidence } = &verdict {
                prop_assert!((0.0..=1.0).contains(confidence) && !evidence.is_empty());
            }
            seen.reverse();
            prop_assert_eq!(verdict, detector.judge(&seen));
        }
    }
}
