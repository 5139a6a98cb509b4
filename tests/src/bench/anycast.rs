//! Anycast detection: how many hosts that stand in one place are flagged, and how many planted ones that stand in
//! several are found, by round trips alone.
//!
//! A planted site has three to eight replicas at nodes of the matrix that are no agents; every agent's round trip to it is
//! the least of those to its replicas. Its nodes are drawn plainly, or far from each other as an operator would place
//! them. Where every landmark sees the same replica nobody could tell it from a host in one place; it counts as missed.

use std::path::Path;

use anyhow::Context;
use landfall_scheduler::gnp::{Detector, Sighting, Verdict, elect, fit};
use landfall_scheduler::model::{AgentId, EmbeddingEpoch, Rtt};
use landfall_scheduler::simulate::{Draw, Matrix};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Line;

/// The agents of a drawing.
const AGENTS: usize = 30;
/// What is scored. The detector's constants were chosen on seeds 100 to 119.
const SEEDS: std::ops::Range<u64> = 0..10;
/// Planted sites a seed, of each kind.
const PLANTED: usize = 200;
/// Replicas of a planted site.
const REPLICAS: std::ops::RangeInclusive<usize> = 3..=8;
/// Nodes among which the one farthest from the replicas so far is taken.
const FAR_AMONG: usize = 5;
/// Shares that may be flagged and must be found.
const MOST_FLAGGED: f64 = 0.05;
const LEAST_FOUND: f64 = 0.95;
/// Suspects are counted by confidence in steps of this.
const STEPS: usize = 4;

/// Counts over all seeds of one matrix and one number of landmarks.
#[derive(Debug, Default)]
struct Counts {
    unicast: Share,
    plain: Share,
    far: Share,
    /// Planted plainly, not all landmarks seeing one replica.
    distinguishable: Share,
    /// By confidence: suspects that are planted, of all suspects, each kind weighted to be as frequent.
    confidences: [(f64, f64); STEPS],
}

/// How many of how many.
#[derive(Debug, Default, Clone, Copy)]
struct Share {
    some: u32,
    all: u32,
}

impl Share {
    fn count(&mut self, one: bool) {
        self.some += u32::from(one);
        self.all += 1;
    }

    fn part(self) -> f64 {
        f64::from(self.some) / f64::from(self.all.max(1))
    }
}

pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (name, file) in [("PlanetLab", "planetlab490.matrix.csv.gz"), ("Seattle", "seattle99.matrix.csv.gz")] {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data")).join(file);
        if !path.exists() {
            lines.push(Line::plain(format!("{name}: skipped, {file} is not there"), ""));
            continue;
        }
        let matrix = Matrix::read(&path).context("read the matrix")?;
        for landmarks in [9, 15] {
            let counts = judged(&matrix, landmarks)?;
            lines.extend(counts.lines(&format!("{name}, {landmarks} landmarks of {AGENTS} agents")));
        }
    }
    Ok(lines)
}

impl Counts {
    fn lines(&self, of: &str) -> Vec<Line> {
        let indistinguishable = self.plain.all - self.distinguishable.all;
        let steps = self
            .confidences
            .iter()
            .map(|&(planted, all)| if all > 0.0 { format!("{:.2}", planted / all) } else { "-".to_owned() });
        vec![
            Line::at_most(
                format!("{of}: share of {} unicast hosts flagged", self.unicast.all),
                self.unicast.part(),
                MOST_FLAGGED,
            ),
            Line::at_least(
                format!("{of}: share of {} planted sites found", self.plain.all),
                self.plain.part(),
                LEAST_FOUND,
            ),
            Line::at_least(format!("{of}: the same, replicas far apart"), self.far.part(), LEAST_FOUND),
            Line::plain(format!("{of}: planted where all landmarks see one replica"), indistinguishable.to_string()),
            Line::plain(format!("{of}: found of the others"), format!("{:.4}", self.distinguishable.part())),
            Line::plain(
                format!("{of}: planted share of suspects of confidence below 1/4, 1/2, 3/4, 1"),
                steps.collect::<Vec<_>>().join(" "),
            ),
        ]
    }

    fn count_confidence(&mut self, verdict: &Verdict, planted: bool, weight: f64) {
        if let Verdict::Suspect { confidence, .. } = verdict {
            let limits = [0.25, 0.5, 0.75];
            let step = limits.iter().filter(|limit| confidence >= limit).count();
            let counted = &mut self.confidences[step];
            counted.0 += if planted { weight } else { 0.0 };
            counted.1 += weight;
        }
    }
}

fn judged(matrix: &Matrix, landmarks: usize) -> anyhow::Result<Counts> {
    let mut counts = Counts::default();
    for seed in SEEDS {
        let draw = Draw::new(matrix, AGENTS, seed)?;
        let mesh = draw.mesh();
        let elected = elect(&mesh, &draw.nominees(), landmarks, seed)?;
        let landmarks: Vec<AgentId> = elected.into_iter().map(|elected| elected.agent).collect();
        let dimensions = landfall_scheduler::gnp::default_dimensions(landmarks.len());
        let map = fit(EmbeddingEpoch::new(1), &mesh, &landmarks, dimensions, seed)?;
        let detector = Detector::new(&map, &mesh, std::collections::BTreeMap::new());
        let weight = 1.0 / f64::from(u32::try_from(draw.sites())?);
        for site in 0..draw.sites() {
            let verdict = detector.judge(&sightings(&draw, &[site], &landmarks).0);
            counts.unicast.count(verdict != Verdict::Unicast);
            counts.count_confidence(&verdict, false, weight);
        }
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let weight = 1.0 / f64::from(u32::try_from(2 * PLANTED)?);
        for _ in 0..PLANTED {
            let (seen, one_replica) = sightings(&draw, &plain(&draw, &mut rng), &landmarks);
            let verdict = detector.judge(&seen);
            let found = verdict != Verdict::Unicast;
            counts.plain.count(found);
            if !one_replica {
                counts.distinguishable.count(found);
            }
            counts.count_confidence(&verdict, true, weight);
            let verdict = detector.judge(&sightings(&draw, &far(&draw, matrix, &mut rng), &landmarks).0);
            counts.far.count(verdict != Verdict::Unicast);
            counts.count_confidence(&verdict, true, weight);
        }
    }
    Ok(counts)
}

/// Distinct sites, as they come.
fn plain(draw: &Draw<'_>, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let count = rng.random_range(REPLICAS).min(draw.sites());
    let mut replicas = Vec::with_capacity(count);
    while replicas.len() < count {
        let site = rng.random_range(0..draw.sites());
        if !replicas.contains(&site) {
            replicas.push(site);
        }
    }
    replicas
}

/// Each the farthest from the replicas so far among a few drawn.
fn far(draw: &Draw<'_>, matrix: &Matrix, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let count = rng.random_range(REPLICAS).min(draw.sites());
    let mut replicas = vec![rng.random_range(0..draw.sites())];
    let apart = |a: usize, b: usize| matrix.millis(draw.site_node(a), draw.site_node(b)).unwrap_or(0.0);
    while replicas.len() < count {
        let drawn = (0..FAR_AMONG).map(|_| rng.random_range(0..draw.sites())).filter(|site| !replicas.contains(site));
        let nearest = |site: usize| replicas.iter().map(|&other| apart(site, other)).fold(f64::INFINITY, f64::min);
        let Some((_, farthest)) =
            drawn.map(|site| (nearest(site), site)).max_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)))
        else {
            continue;
        };
        replicas.push(farthest);
    }
    replicas
}

/// What the landmarks see of a site with these replicas, and whether all of them see the same one.
fn sightings(draw: &Draw<'_>, replicas: &[usize], landmarks: &[AgentId]) -> (Vec<Sighting>, bool) {
    let mut seen = Vec::with_capacity(landmarks.len());
    let mut nearest = std::collections::BTreeSet::new();
    for &landmark in landmarks {
        let Some(agent) = draw.agent_of(landmark) else { continue };
        let known = replicas.iter().filter_map(|&site| Some((draw.truth(site, agent)?, site)));
        let Some((millis, site)) = known.min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
        let Ok(rtt) = Rtt::try_from_millis_f64(millis) else { continue };
        nearest.insert(site);
        seen.push(Sighting { landmark, rtt, address: None });
    }
    (seen, nearest.len() <= 1)
}
