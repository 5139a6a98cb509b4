//! Measures the damage that lying landmarks cause, and the fraction of honest agents that are
//! mistaken for liars.
//!
//! Of thirty agents, twelve are landmarks. The measurement without liars is repeated with nine and
//! with fifteen landmarks. Landmarks are elected while all agents are honest. A liar falsifies all
//! its reports, on the mesh and on sites. Other agents measure the liar honestly. The figures cover
//! seeds 0 to 9, and pairs of a site and an agent that is not a landmark. Each figure is relative
//! to the figure for the same seeds and pairs without liars.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Context;
use landfall_agent::probe::weighted_mean::weighted_mean;
use landfall_scheduler::gnp::trust::{FleetTrust, Trust, TrustEvidence, judge};
use landfall_scheduler::gnp::{self, Embedding, Mesh, Refined, RefinedSwitches};
use landfall_scheduler::model::{AgentId, EmbeddingEpoch, Rtt};
use landfall_scheduler::simulate::{Draw, Matrix};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::accuracy::{PLANETLAB, SEATTLE, matrix};
use super::line::Line;
use super::lying_agents::{Lie, LyingFleet};
use crate::evidence::figures::float as count;

const SEEDS: std::ops::Range<u64> = 0..10;
const AGENTS: usize = 30;
const LANDMARKS: usize = 12;
/// Number of sites per seed on which maps are scored. The sites are evenly spaced in the list of a
/// seed's sites instead of drawn at random, so that the same sites are scored with and without
/// liars.
const SITES: usize = 60;
/// Every third of the [`SITES`] sites is also used to judge whether landmarks lie.
const JUDGED_BY: usize = 3;
/// The numbers of drift steps after which maps are scored. In a step, a drifting liar's reports
/// grow by [`DRIFT`]. Several numbers are needed, because the damage is largest just before
/// the liar is detected, and the time of detection is unknown.
const ROUNDS: [i32; 6] = [5, 7, 10, 15, 20, 30];
/// Growth of a drifting liar's reports per step, as a fraction.
const DRIFT: f64 = 0.02;
/// Maximum fraction of honest agents that are mistaken for liars. The maximum is not zero, because
/// excluding an honest agent harms the map little, but including a liar harms the map much.
const MOST_MISJUDGED: f64 = 0.02;
/// Number of samples per measured pair.
const SAMPLES: usize = 20;
const BOGUS: f64 = 0.1;

/// The quality of a seed's maps.
#[derive(Debug, Clone, Default)]
struct MapQuality {
    /// Relative errors of predictions of the plain and the refined tier.
    plain: Vec<f64>,
    refined: Vec<f64>,
    /// Sums of the sites' true round trips, in milliseconds: to the first choice of the refined
    /// tier, and to an average agent.
    first: f64,
    random: f64,
}

impl MapQuality {
    fn add(&mut self, other: Self) {
        self.plain.extend(other.plain);
        self.refined.extend(other.refined);
        self.first += other.first;
        self.random += other.random;
    }
}

/// The `percent` percentile of relative errors.
fn error(errors: &[f64], percent: usize) -> f64 {
    let mut sorted = errors.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) * percent / 100).copied().unwrap_or(f64::NAN)
}

fn sites(draw: &Draw<'_>) -> impl Iterator<Item = usize> {
    let step = (draw.sites() / SITES).max(1);
    (0..draw.sites()).step_by(step)
}

/// The maps of both tiers, fitted to the same mesh.
struct Maps {
    plain: Embedding,
    refined: Refined,
}

impl Maps {
    fn fit(mesh: &Mesh, landmarks: &[AgentId], seed: u64) -> anyhow::Result<Self> {
        Ok(Self {
            plain: fitted(mesh, landmarks, seed)?,
            refined: Refined::new(mesh, landmarks, &RefinedSwitches::default(), seed).context("fit the refined map")?,
        })
    }
}

/// Scores maps with the landmarks' measurements of sites.
fn score(
    draw: &Draw<'_>,
    landmarks: &[AgentId],
    maps: &Maps,
    measured: impl Fn(usize) -> Vec<(AgentId, Rtt)>,
) -> MapQuality {
    let mut figures = MapQuality::default();
    for site in sites(draw) {
        let reports = measured(site);
        let (Ok(place), Ok(cloud)) = (maps.plain.locate(&reports), maps.refined.locate(&reports)) else { continue };
        let mut first: Option<(f64, f64)> = None;
        let mut all = Vec::new();
        for agent in 0..draw.agents() {
            let id = draw.agent_id(agent);
            let (Some(truth), Some(at)) = (draw.truth(site, agent), maps.plain.placement(id)) else { continue };
            let (Ok(plain), Some(refined)) = (maps.plain.predict(&place, at), cloud.predict(id)) else { continue };
            let known = reports.iter().find(|(landmark, _)| *landmark == id).map(|(_, rtt)| rtt.as_millis_f64());
            if !landmarks.contains(&id) {
                figures.plain.push((plain.as_millis_f64() - truth).abs() / truth);
                figures.refined.push((refined.median.as_millis_f64() - truth).abs() / truth);
            }
            let rank = known.unwrap_or(refined.expected.as_millis_f64());
            if first.is_none_or(|(least, _)| rank < least) {
                first = Some((rank, truth));
            }
            all.push(truth);
        }
        figures.first += first.map_or(0.0, |(_, truth)| truth);
        figures.random += all.iter().sum::<f64>() / count(all.len().max(1));
    }
    figures
}

fn judged(fleet: &LyingFleet<'_>, mesh: &Mesh) -> FleetTrust {
    let reports: Vec<Vec<(AgentId, Rtt)>> =
        sites(fleet.draw).step_by(JUDGED_BY).map(|site| fleet.measured(site)).collect();
    judge(&TrustEvidence { mesh, landmarks: fleet.landmarks, sites: &reports, least: &BTreeMap::new() })
}

/// Cached scores, by seed and excluded agents. A score is cached only if all liars are excluded,
/// because otherwise the score depends on the lie.
type ScoreCache = BTreeMap<(u64, Vec<AgentId>), MapQuality>;

/// Fits maps without the reports of the agents in `out`, and returns the maps' quality.
fn scored(
    fleet: &LyingFleet<'_>,
    mesh: &Mesh,
    out: &BTreeSet<AgentId>,
    cache: &mut ScoreCache,
) -> anyhow::Result<MapQuality> {
    let key = (fleet.seed, out.iter().copied().collect::<Vec<_>>());
    let honest = fleet.liars.is_subset(out);
    if let Some(figures) = cache.get(&key).filter(|_| honest) {
        return Ok(figures.clone());
    }
    let believed: Vec<AgentId> = fleet.landmarks.iter().copied().filter(|landmark| !out.contains(landmark)).collect();
    let maps = Maps::fit(&mesh.without_reports_of(out), &believed, fleet.seed)?;
    let figures = score(fleet.draw, fleet.landmarks, &maps, |site| {
        fleet.measured(site).into_iter().filter(|(landmark, _)| !out.contains(landmark)).collect()
    });
    if honest {
        cache.insert(key, figures.clone());
    }
    Ok(figures)
}

fn fitted(mesh: &Mesh, landmarks: &[AgentId], seed: u64) -> anyhow::Result<Embedding> {
    let dimensions = gnp::default_dimensions(landmarks.len());
    gnp::fit(EmbeddingEpoch::new(1), mesh, landmarks, dimensions, seed).context("fit the map")
}

fn elected(draw: &Draw<'_>, count: usize, seed: u64) -> anyhow::Result<Vec<AgentId>> {
    let elected = gnp::elect(&draw.mesh(), &draw.nominees(), count, seed).context("elect landmarks")?;
    Ok(elected.into_iter().map(|elected| elected.agent).collect())
}

#[derive(Default)]
struct LieResult {
    figures: MapQuality,
    liars: usize,
    caught: usize,
    honest_quarantined: usize,
    alarms: usize,
    trials: usize,
}

impl LieResult {
    /// The median error with liars, divided by the median error without liars. The result is the
    /// larger ratio of the two tiers.
    fn harm(&self, clean: &MapQuality) -> f64 {
        let ratio = |with_liars: &[f64], clean: &[f64]| error(with_liars, 50) / error(clean, 50);
        ratio(&self.figures.plain, &clean.plain).max(ratio(&self.figures.refined, &clean.refined))
    }

    fn add(&mut self, fleet: &LyingFleet<'_>, mesh: &Mesh, cache: &mut ScoreCache) -> anyhow::Result<()> {
        let judgement = judged(fleet, mesh);
        let quarantined = judgement.quarantined();
        self.liars += fleet.liars.len();
        self.caught += fleet.liars.iter().filter(|liar| quarantined.contains(liar)).count();
        self.honest_quarantined += quarantined.iter().filter(|agent| !fleet.liars.contains(agent)).count();
        self.trials += 1;
        let alarmed = judgement.alarm().is_some();
        self.alarms += usize::from(alarmed);
        let mut figures = scored(fleet, mesh, &quarantined, cache)?;
        if alarmed {
            // During an alarm, agents are chosen at random.
            figures.first = figures.random;
        }
        self.figures.add(figures);
        Ok(())
    }
}

pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    let mut lines = Vec::new();
    for name in [PLANETLAB, SEATTLE] {
        match matrix(name)? {
            Some(matrix) => of_matrix(name, &matrix, SEEDS, &mut lines)?,
            None => lines.push(Line::skipped(name)),
        }
    }
    Ok(lines)
}

fn of_matrix(name: &str, matrix: &Matrix, seeds: std::ops::Range<u64>, lines: &mut Vec<Line>) -> anyhow::Result<()> {
    let draws: Vec<(u64, Draw<'_>)> =
        seeds.map(|seed| Ok((seed, Draw::new(matrix, AGENTS, seed)?))).collect::<anyhow::Result<_>>()?;
    let (mut clean, mut cache) = (MapQuality::default(), ScoreCache::new());
    for count in [9, LANDMARKS, 15] {
        lines.push(honest(name, &draws, count, &mut clean)?);
    }
    lines.extend(bogus(name, &draws, &clean)?);
    for liars in 1..=4 {
        for (what, lie) in Lie::ALL {
            let sum = with_liars(&draws, lie, liars, &mut cache)?;
            lines.extend(verdict(&format!("{name}, {liars} liars, {what}"), liars, &sum, &clean));
        }
        let mut worst: Option<(i32, LieResult)> = None;
        for round in ROUNDS {
            let sum = with_liars(&draws, Lie::Times((1.0 + DRIFT).powi(round)), liars, &mut cache)?;
            if worst.as_ref().is_none_or(|(_, worst)| sum.harm(&clean) > worst.harm(&clean)) {
                worst = Some((round, sum));
            }
        }
        if let Some((round, sum)) = worst {
            let what = format!("{name}, {liars} liars, drifting 2 % a round, the worst round ({round})");
            lines.extend(verdict(&what, liars, &sum, &clean));
        }
    }
    Ok(())
}

fn with_liars(draws: &[(u64, Draw<'_>)], lie: Lie, liars: usize, cache: &mut ScoreCache) -> anyhow::Result<LieResult> {
    let mut sum = LieResult::default();
    for (seed, draw) in draws {
        let landmarks = elected(draw, LANDMARKS, *seed)?;
        let fleet = LyingFleet::new(draw, &landmarks, *seed, lie, liars);
        sum.add(&fleet, &fleet.mesh(), cache)?;
    }
    Ok(sum)
}

/// Measures the fraction of agents that are quarantined if no agent lies.
fn honest(name: &str, draws: &[(u64, Draw<'_>)], landmarks: usize, clean: &mut MapQuality) -> anyhow::Result<Line> {
    let (mut agents, mut quarantined, mut suspect, mut alarms) = (0, 0, 0, 0);
    for (seed, draw) in draws {
        let elected = elected(draw, landmarks, *seed)?;
        let fleet = LyingFleet::new(draw, &elected, *seed, Lie::Zero, 0);
        let mesh = fleet.mesh();
        let judgement = judged(&fleet, &mesh);
        agents += draw.agents();
        let trusts = judgement.findings().values().map(|finding| finding.trust);
        quarantined += trusts.clone().filter(|trust| *trust == Trust::Quarantined).count();
        suspect += trusts.filter(|trust| *trust == Trust::Suspect).count();
        alarms += usize::from(judgement.alarm().is_some());
        for (agent, finding) in judgement.findings() {
            let at = if elected.contains(agent) { "landmark" } else { "agent" };
            println!(
                "    {name}, {landmarks} landmarks, seed {seed}: {at} {agent} {:?}: {}",
                finding.trust, finding.reason
            );
        }
        if landmarks == LANDMARKS {
            clean.add(scored(&fleet, &mesh, &BTreeSet::new(), &mut ScoreCache::new())?);
        }
    }
    let share = count(quarantined) / count(agents.max(1));
    let what = format!(
        "{name}, {landmarks} landmarks, nobody lies: part of the agents quarantined ({suspect} suspect, {alarms} alarms)"
    );
    Ok(Line::at_most(what, share, MOST_MISJUDGED))
}

fn verdict(what: &str, liars: usize, sum: &LieResult, clean: &MapQuality) -> Vec<Line> {
    let plain = error(&sum.figures.plain, 50) / error(&clean.plain, 50);
    let refined = error(&sum.figures.refined, 50) / error(&clean.refined, 50);
    let caught = format!(
        "caught {}/{}, {} honest with them, alarms {}/{}",
        sum.caught, sum.liars, sum.honest_quarantined, sum.alarms, sum.trials
    );
    if liars > 3 {
        let ratio = sum.figures.first / sum.figures.random;
        let ratios = format!("RE50 / clean {plain:.2} plain, {refined:.2} refined");
        return vec![
            Line::at_most(format!("{what}: chosen / random ({caught}; {ratios})"), ratio, 1.0),
            Line::at_least(format!("{what}: part of the drawings alarmed"), count(sum.alarms) / count(sum.trials), 1.0),
        ];
    }
    let target = if liars == 3 { 1.5 } else { 1.25 };
    vec![
        Line::at_most(format!("{what}: RE50 / clean, plain ({caught})"), plain, target),
        Line::at_most(format!("{what}: RE50 / clean, refined"), refined, target),
    ]
}

/// Measures the effect of bogus samples, which the statistical weighted mean must filter out.
fn bogus(name: &str, draws: &[(u64, Draw<'_>)], clean: &MapQuality) -> anyhow::Result<Vec<Line>> {
    let mut figures = MapQuality::default();
    for (seed, draw) in draws {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0xb0_905);
        let landmarks = elected(draw, LANDMARKS, *seed)?;
        let honest = draw.mesh();
        let mut mesh = Mesh::new();
        for i in 0..draw.agents() {
            for j in 0..draw.agents() {
                let (a, b) = (draw.agent_id(i), draw.agent_id(j));
                if let Some(rtt) = honest.measured(a, b).and_then(|rtt| sampled(rtt, &mut rng)) {
                    mesh.insert(a, b, rtt);
                }
            }
        }
        let maps = Maps::fit(&mesh, &landmarks, *seed)?;
        let reports: Vec<Vec<(AgentId, Rtt)>> = (0..draw.sites())
            .map(|site| {
                let honest = draw.measured(site, &landmarks).into_iter();
                honest.filter_map(|(landmark, rtt)| Some((landmark, sampled(rtt, &mut rng)?))).collect()
            })
            .collect();
        figures.add(score(draw, &landmarks, &maps, |site| reports[site].clone()));
    }
    let line = |tier: &str, bogus: &[f64], clean: &[f64]| {
        let ratio = error(bogus, 90) / error(clean, 90);
        Line::at_most(format!("{name}, 10 % bogus samples of 20: RE90 / clean, {tier}"), ratio, 1.15)
    };
    Ok(vec![line("plain", &figures.plain, &clean.plain), line("refined", &figures.refined, &clean.refined)])
}

/// The statistical weighted mean of samples with 5 % noise. A tenth of the samples are random
/// values of up to two seconds.
fn sampled(truth: Rtt, rng: &mut ChaCha8Rng) -> Option<Rtt> {
    let millis = truth.as_millis_f64();
    let sample = |rng: &mut ChaCha8Rng| {
        let noisy = if rng.random_bool(BOGUS) {
            rng.random_range(0.001..2000.0)
        } else {
            // The sum of twelve uniform values is nearly normally distributed.
            let normal = (0..12).map(|_| rng.random_range(0.0..1.0)).sum::<f64>() - 6.0;
            millis * (1.0 + 0.05 * normal)
        };
        Duration::from_secs_f64(noisy.max(0.001) / 1e3)
    };
    let samples: Vec<Duration> = (0..SAMPLES).map(|_| sample(rng)).collect();
    Rtt::try_new(weighted_mean(&samples)?.rtt).ok()
}
