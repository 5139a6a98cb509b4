//! Judges whether a host has one location or several, from all kinds of evidence together.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::gnp::{Embedding, Mesh};
use crate::model::geo::Position;
use crate::model::{AgentId, Rtt};

use super::evidence::AnycastEvidence;
use super::map_score::MapJudge;
use super::{addresses, light};

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

    /// Judges one host. If a landmark made several observations, only the last one is used.
    pub fn judge(&self, observations: &[Observation]) -> LocationVerdict {
        let once: BTreeMap<AgentId, Observation> = observations.iter().map(|one| (one.landmark, *one)).collect();
        let seen = || once.values().map(|one| (one.landmark, one.rtt));
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
        if let Some((confidence, map)) = self.map.as_ref().and_then(|map| map.evidence(seen())) {
            doubt *= 1.0 - confidence;
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::gnp::Placement;
    use crate::gnp::distance::distance;
    use crate::gnp::fixture::{agent, hosts, mesh_of, rtt};
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
        assert_eq!(
            detector.judge(&seen[..crate::gnp::anycast::map_score::FEWEST_MEASURED - 1]),
            LocationVerdict::Unicast
        );
        assert_eq!(detector.judge(&[]), LocationVerdict::Unicast);
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
