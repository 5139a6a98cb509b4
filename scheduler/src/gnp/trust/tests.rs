//! Judges synthetic networks in which the lying agents are known.

use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::gnp::fixture::rtt;
use crate::gnp::{Mesh, fit};
use crate::model::{AgentId, EmbeddingEpoch, Rtt};

fn agent(index: usize) -> AgentId {
    AgentId::new(i64::try_from(index).unwrap() + 1)
}

/// Hosts in a square with sides of 150 ms, with heights. Between different carriers, 8 ms are added
/// to the distance, or 25 ms if one of the carriers is [`REMOTE`].
struct TestNetwork {
    points: Vec<[f64; 3]>,
    carriers: Vec<usize>,
}

/// The carrier that is far from all other carriers.
const REMOTE: usize = 3;

impl TestNetwork {
    fn new(count: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let point = |_| [rng.random_range(0.0..150.0), rng.random_range(0.0..150.0), rng.random_range(1.0..5.0)];
        Self { points: (0..count).map(point).collect(), carriers: vec![0; count] }
    }

    fn millis(&self, a: usize, b: usize) -> f64 {
        let ([x, y, h], [u, v, k]) = (self.points[a], self.points[b]);
        let between = match (self.carriers[a], self.carriers[b]) {
            (one, other) if one == other => 0.0,
            (REMOTE, _) | (_, REMOTE) => 25.0,
            _ => 8.0,
        };
        (x - u).hypot(y - v) + h + k + between
    }

    /// The mesh of the first `agents` hosts. `lie` maps a prober and a true round trip to the
    /// prober's report.
    fn mesh(&self, agents: usize, lie: impl Fn(usize, f64) -> f64) -> Mesh {
        let mut mesh = Mesh::new();
        for a in 0..agents {
            for b in (0..agents).filter(|&b| b != a) {
                mesh.insert(agent(a), agent(b), rtt(lie(a, self.millis(a, b))));
            }
        }
        mesh
    }

    /// The reports of the first `landmarks` hosts about every host after the first `agents`. `lie`
    /// maps a prober and a true round trip to the prober's report.
    fn sites(&self, agents: usize, landmarks: usize, lie: impl Fn(usize, f64) -> f64) -> Vec<Vec<(AgentId, Rtt)>> {
        let site = |s: usize| (0..landmarks).map(|l| (agent(l), rtt(lie(l, self.millis(l, s))))).collect();
        (agents..self.points.len()).map(site).collect()
    }
}

fn landmarks(count: usize) -> Vec<AgentId> {
    (0..count).map(agent).collect()
}

fn judged(mesh: &Mesh, landmarks: &[AgentId], sites: &[Vec<(AgentId, Rtt)>]) -> FleetTrust {
    judge(&TrustEvidence { mesh, landmarks, sites, least: &BTreeMap::new() })
}

#[test]
fn an_honest_network_has_no_liars_and_a_lying_landmark_is_named_with_its_figures() {
    let net = TestNetwork::new(12, 3);
    let honest = judged(&net.mesh(12, |_, millis| millis), &landmarks(8), &[]);
    assert_eq!(honest.findings(), &BTreeMap::new());
    assert_eq!(honest.alarm(), None);

    let mesh = net.mesh(12, |agent, millis| if agent == 2 { 2.0 * millis } else { millis });
    let judgement = judged(&mesh, &landmarks(8), &[]);
    assert_eq!(judgement.quarantined(), BTreeSet::from([agent(2)]));
    let finding = judgement.finding(agent(2)).unwrap();
    assert_eq!(finding.kind, Kind::Asymmetry);
    assert!(finding.reason.starts_with("its reports are too long: off by a factor of 1.9"), "{}", finding.reason);
    assert!(finding.reason.ends_with("in the median from what 11 others measured of it"), "{}", finding.reason);
    assert_eq!(judgement.alarm(), None, "one of eight");
}

#[test]
fn who_lies_about_sites_alone_is_found_by_where_the_others_place_them() {
    let net = TestNetwork::new(30, 5);
    let mesh = net.mesh(14, |_, millis| millis);
    let sites = net.sites(14, 8, |agent, millis| if agent == 5 { 3.0 * millis } else { millis });
    let judgement = judged(&mesh, &landmarks(8), &sites);
    assert_eq!(judgement.quarantined(), BTreeSet::from([agent(5)]), "{:?}", judgement.findings());
    assert_eq!(judgement.finding(agent(5)).unwrap().kind, Kind::Sites);
}

#[test]
fn landmarks_that_stand_together_do_not_quarantine_a_fourth_of_what_they_misplace_and_still_find_its_lie() {
    // Three towns with agents, 16, 18 and 28 ms apart, a fourth town without agents, and four
    // carriers. Three of the four landmarks are in the second town.
    let towns = [[0.0, 0.0], [16.0, 0.0], [22.4, 16.8], [-14.0, -8.0]];
    let agents = [(0, 1), (1, 0), (1, 1), (1, 3), (0, 0), (0, 2), (0, 3), (1, 2), (2, 0), (2, 1)];
    let sites = (0..20).map(|site| ([0, 3, 0, 2][site % 4], [0, 1, 3][site % 3]));
    let hosts: Vec<(usize, usize)> = agents.into_iter().chain(sites).collect();
    let mut net = TestNetwork::new(hosts.len(), 13);
    net.carriers = hosts.iter().map(|&(_, carrier)| carrier).collect();
    for (index, &(town, _)) in hosts.iter().enumerate() {
        let access = if index < agents.len() { 0.5 } else { [2.0, 5.0, 8.0, 3.0][index % 4] };
        net.points[index] = [towns[town][0], towns[town][1], access];
    }
    let mesh = net.mesh(10, |_, millis| millis);
    let honest = judged(&mesh, &landmarks(4), &net.sites(10, 4, |_, millis| millis));
    assert_eq!(honest.findings(), &BTreeMap::new());
    let lying = net.sites(10, 4, |agent, millis| if agent == 0 { 8.0 * millis } else { millis });
    let judgement = judged(&mesh, &landmarks(4), &lying);
    assert_eq!(judgement.quarantined(), BTreeSet::from([agent(0)]), "{:?}", judgement.findings());
}

#[test]
fn who_nobody_measured_is_judged_by_the_map_of_the_others_where_they_placed_it() {
    let net = TestNetwork::new(12, 9);
    let mut mesh = Mesh::new();
    let full = net.mesh(12, |agent, millis| if agent == 4 { 3.0 * millis } else { millis });
    for a in 0..12 {
        for b in (0..12).filter(|&b| b != a) {
            // Agent 4 lies. It measures agents 0 to 5, and agents 6 to 11 measure it.
            let one_way = (a == 4 && b < 6) || (b == 4 && a >= 6);
            if (a != 4 && b != 4) || one_way {
                mesh.insert(agent(a), agent(b), full.measured(agent(a), agent(b)).unwrap());
            }
        }
    }
    let judgement = judged(&mesh, &landmarks(9), &[]);
    assert_eq!(judgement.quarantined(), BTreeSet::from([agent(4)]), "{:?}", judgement.findings());
    assert_eq!(judgement.finding(agent(4)).unwrap().kind, Kind::Residual);
    assert!(!judgement.heard(agent(4), Kind::Asymmetry));
}

#[test]
fn a_drift_of_a_sixth_is_found_and_noise_that_is_as_large_is_not_taken_for_a_lie() {
    let net = TestNetwork::new(16, 4);
    let mut mesh = net.mesh(16, |agent, millis| if agent == 3 { 1.17 * millis } else { millis });
    // Agent 6 measures round trips to half of the agents a fifth too long, and to the other half a
    // sixth too short.
    for target in (0..16).filter(|&target| target != 6) {
        let factor = if target % 2 == 0 { 1.2 } else { 1.0 / 1.2 };
        mesh.insert(agent(6), agent(target), rtt(factor * net.millis(6, target)));
    }
    let judgement = judged(&mesh, &landmarks(9), &[]);
    assert_eq!(judgement.quarantined(), BTreeSet::from([agent(3)]), "{:?}", judgement.findings());
}

#[test]
fn who_bears_others_out_against_everybody_is_found_even_where_it_says_the_truth_of_the_rest() {
    // The first agents collude. Agent 15 is honest and very near agent 0, which lies only about the
    // other colluding agents.
    let mut net = TestNetwork::new(16, 11);
    net.points[0] = [10.0, 10.0, 1.0];
    net.points[1] = [140.0, 20.0, 1.0];
    net.points[2] = [80.0, 140.0, 1.0];
    net.points[15] = [10.5, 10.5, 1.0];
    let conspiring = |count: usize| {
        let mut mesh = net.mesh(16, |_, millis| millis);
        for a in 0..count {
            for b in (0..count).filter(|&b| b != a) {
                mesh.insert(agent(a), agent(b), rtt(1.0));
            }
        }
        judged(&mesh, &landmarks(9), &[])
    };
    let judgement = conspiring(3);
    assert_eq!(judgement.quarantined(), (0..3).map(agent).collect(), "{:?}", judgement.findings());
    let finding = judgement.finding(agent(1)).unwrap();
    assert_eq!(finding.kind, Kind::Collusion);
    assert!(
        finding
            .reason
            .starts_with("it and 2 others confirm each other against all other agents: it claims to be 1.0 ms")
    );
    assert!(judgement.alarm().is_some(), "three of nine");
    assert_eq!(conspiring(2).findings(), &BTreeMap::new(), "one pair may be an odd path");
}

#[test]
fn a_round_trip_faster_than_light_quarantines_whose_pair_denies_it() {
    let net = TestNetwork::new(8, 2);
    // The lie is so small that neither asymmetry nor residuals would quarantine agent 1.
    let mesh = net.mesh(8, |agent, millis| if agent == 1 { 0.9 * millis } else { millis });
    let mut least = BTreeMap::new();
    for a in 0..8 {
        for b in 0..a {
            least.insert((agent(b), agent(a)), rtt(0.95 * net.millis(a, b)));
        }
    }
    let judgement = judge(&TrustEvidence { mesh: &mesh, landmarks: &landmarks(6), sites: &[], least: &least });
    assert_eq!(judgement.quarantined(), BTreeSet::from([agent(1)]));
    let finding = judgement.finding(agent(1)).unwrap();
    assert_eq!(finding.kind, Kind::Light);
    assert!(
        finding.reason.starts_with("7 of its 7 round trips are shorter than light in fibre needs"),
        "{}",
        finding.reason
    );
}

#[test]
fn a_third_of_the_landmarks_raises_the_alarm() {
    let net = TestNetwork::new(12, 7);
    let mesh = net.mesh(12, |agent, millis| if agent < 3 { 10.0 * millis } else { millis });
    let judgement = judged(&mesh, &landmarks(9), &[]);
    assert_eq!(judgement.quarantined(), (0..3).map(agent).collect());
    let alarm = judgement.alarm().unwrap();
    assert_eq!(alarm.to_string(), "the map cannot be trusted: 3 of 9 landmarks are doubted");
    let two = net.mesh(12, |agent, millis| if agent < 2 { 10.0 * millis } else { millis });
    assert_eq!(judged(&two, &landmarks(9), &[]).alarm(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn whatever_agents_report_every_figure_is_a_number_and_no_distance_is_negative(
        seed in any::<u64>(), hostile in 0.0..1.0_f64,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut mesh = Mesh::new();
        // A random round trip from a microsecond to ten minutes.
        let any_rtt = |rng: &mut ChaCha8Rng| rtt(rng.random_range(-6.9..13.3_f64).exp());
        for a in 0..7 {
            for b in (0..7).filter(|&b| b != a) {
                if rng.random_bool(0.9) {
                    let odd = rng.random_bool(hostile);
                    let one = if odd { any_rtt(&mut rng) } else { rtt(20.0) };
                    mesh.insert(agent(a), agent(b), one);
                }
            }
        }
        let sites: Vec<Vec<(AgentId, Rtt)>> =
            (0..9).map(|_| (0..5).map(|l| (agent(l), any_rtt(&mut rng))).collect()).collect();
        let landmarks = landmarks(5);
        let judgement = judged(&mesh, &landmarks, &sites);
        prop_assert_eq!(&judgement, &judged(&mesh, &landmarks, &sites), "one evidence, one judgement");
        for finding in judgement.findings().values() {
            prop_assert!(!finding.reason.contains("NaN") && !finding.reason.contains("inf"), "{}", finding.reason);
        }
        let out = judgement.quarantined();
        let left: Vec<AgentId> = landmarks.iter().copied().filter(|landmark| !out.contains(landmark)).collect();
        let believed = mesh.without_reports_of(&out);
        let Ok(map) = fit(EmbeddingEpoch::new(1), &believed, &left, 2.min(left.len().max(2) - 1), seed) else {
            return Ok(());
        };
        prop_assert!(map.fit_error().is_finite() && map.fit_error() >= 0.0);
        for site in &sites {
            let said: Vec<(AgentId, Rtt)> = site.iter().copied().filter(|(agent, _)| !out.contains(agent)).collect();
            let Ok(place) = map.locate(&said) else { continue };
            prop_assert!(place.fit_error.is_finite() && place.fit_error >= 0.0);
            prop_assert!(place.coordinate.iter().all(|component| component.is_finite()));
            for at in map.agents().values() {
                let predicted = map.predict(&place, at).unwrap().as_millis_f64();
                prop_assert!(predicted.is_finite() && predicted > 0.0);
            }
        }
    }
}
