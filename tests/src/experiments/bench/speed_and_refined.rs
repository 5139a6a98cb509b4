//! Measures the speed of the plain tier: of placing hosts, finding the nearest agents of a million
//! sites, fitting a map, and electing landmarks; and the speed of the refined tier: of electing
//! landmarks, fitting a map, and predicting the round trip from every agent to a site.
//!
//! Times of single-threaded work are processor time of one thread, so that other work on the
//! machine has little effect. Two solvers place the same hosts on the same map, and take turns.
//! Figures are medians of several repetitions, except those of the search for the nearest agents.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Context;
use landfall_scheduler::gnp::{self, Embedding, Placement, Refined, RefinedSwitches, Solver, elect_held_out};
use landfall_scheduler::model::{AgentId, EmbeddingEpoch, Rtt};
use landfall_scheduler::simulate::Draw;
use nix::time::{ClockId, clock_gettime};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use super::accuracy::{PLANETLAB, matrix};
use super::line::{Line, median};

const AGENTS: usize = 30;
const LANDMARKS: usize = 9;
const DIMENSIONS: usize = 8;
const SEED: u64 = 0;
/// Number of repetitions per measurement.
const ROUNDS: usize = 7;
/// Number of times that one repetition places all hosts, so that a repetition takes tens of
/// milliseconds.
const BULK_PASSES: usize = 20;
const SIMPLEX_PASSES: usize = 2;
/// Number of agents in the search for the nearest agents.
const FLEET: i64 = 1_000;
const SITES: usize = 1_000_000;

/// The landmarks' measurements of one host.
type HostMeasurements = Vec<(AgentId, Rtt)>;

pub(super) fn speed() -> anyhow::Result<Vec<Line>> {
    let Some(matrix) = matrix(PLANETLAB)? else { return Ok(vec![Line::skipped(PLANETLAB)]) };
    let draw = Draw::new(&matrix, AGENTS, SEED)?;
    let (fitting, map) = fit(&draw)?;
    let hosts: Vec<HostMeasurements> =
        (0..draw.sites()).map(|site| draw.measured(site, map.landmarks())).filter(|host| !host.is_empty()).collect();
    let mut lines = solvers(&map, &hosts)?;
    lines.push(Line::at_most("elect and fit 30 agents, 9 landmarks, 8-D, one core, s", fitting, 2.0));
    lines.extend(nearest()?);
    Ok(lines)
}

/// Elects landmarks and fits a map. Returns the median time in seconds, and the last map.
fn fit(draw: &Draw<'_>) -> anyhow::Result<(f64, Embedding)> {
    let (mesh, nominees) = (draw.mesh(), draw.nominees());
    let mut seconds = Vec::new();
    let mut map = None;
    for _ in 0..ROUNDS {
        let began = processor_time()?;
        let elected = gnp::elect(&mesh, &nominees, LANDMARKS, SEED).context("elect")?;
        let landmarks: Vec<AgentId> = elected.into_iter().map(|elected| elected.agent).collect();
        map = Some(gnp::fit(EmbeddingEpoch::new(1), &mesh, &landmarks, DIMENSIONS, SEED).context("fit")?);
        seconds.push(spent(began)?);
    }
    Ok((median(seconds), map.context("there is a round")?))
}

/// Measures how many hosts each solver places per second.
fn solvers(map: &Embedding, hosts: &[HostMeasurements]) -> anyhow::Result<Vec<Line>> {
    let locator = map.locator()?;
    let by = |solver: Solver, host: &HostMeasurements| -> anyhow::Result<f64> {
        Ok(locator.locate(host, solver)?.fit_error)
    };
    let (mut bulk, mut simplex) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bulk.push(rate(hosts, BULK_PASSES, |host| by(Solver::LevenbergMarquardt, host))?);
        simplex.push(rate(hosts, SIMPLEX_PASSES, |host| by(Solver::Simplex, host))?);
    }
    let bulk_name = "plain, bulk path: hosts/s on one core (9 landmarks, 8-D, 30 agents)";
    Ok(vec![
        Line::at_least(bulk_name, median(bulk), 100_000.0),
        Line::at_least("plain, simplex: hosts/s on one core", median(simplex), 10_000.0),
    ])
}

/// The number of hosts that `place` places per second of processor time.
fn rate(
    hosts: &[HostMeasurements],
    passes: usize,
    place: impl Fn(&HostMeasurements) -> anyhow::Result<f64>,
) -> anyhow::Result<f64> {
    let began = processor_time()?;
    let mut sum = 0.0;
    for _ in 0..passes {
        for host in hosts {
            sum += place(host)?;
        }
    }
    anyhow::ensure!(sum.is_finite(), "a host was placed nowhere");
    Ok(f64::from(u32::try_from(hosts.len() * passes)?) / spent(began)?)
}

/// Measures how long two threads take to find the nearest agents of a million sites.
fn nearest() -> anyhow::Result<Vec<Line>> {
    let mut rng = ChaCha8Rng::seed_from_u64(SEED);
    let mut drawn = || (0..=DIMENSIONS).map(|_| rng.random_range(0.0..100.0)).collect::<Vec<f64>>();
    let epoch = EmbeddingEpoch::new(1);
    let agents =
        (1..=FLEET).map(|i| (AgentId::new(i), Placement { epoch, coordinate: drawn(), fit_error: 0.0 })).collect();
    let map = Embedding::from_parts(epoch, DIMENSIONS, vec![AgentId::new(1)], agents, 0.0)?;
    let sites: Vec<f64> = (0..SITES).flat_map(|_| drawn()).collect();
    let locator = map.locator()?;
    let (first, second) = sites.split_at(sites.len() / 2);
    let began = Instant::now();
    let halves = std::thread::scope(|scope| {
        [first, second]
            .map(|half| scope.spawn(|| locator.nearest(half).map(|found| found.len())))
            .map(std::thread::ScopedJoinHandle::join)
    });
    let seconds = began.elapsed().as_secs_f64();
    let mut found = 0;
    for half in halves {
        found += half.map_err(|_| anyhow::anyhow!("a thread panicked"))??;
    }
    anyhow::ensure!(found == SITES, "{found} of {SITES} sites have their nearest agents");
    let bytes = u32::try_from(size_of::<gnp::Nearest>())?;
    Ok(vec![
        Line::at_most("3 nearest of 1,000 agents for 1,000,000 sites, two threads, wall, s", seconds, 15.0),
        Line::at_most("bytes a site beyond its coordinate", f64::from(bytes), 64.0),
    ])
}

/// The processor time of this thread so far.
pub(super) fn processor_time() -> anyhow::Result<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).context("read the thread's clock")
}

/// The processor time of this thread since `began`, in seconds.
pub(super) fn spent(began: Duration) -> anyhow::Result<f64> {
    Ok((processor_time()? - began).as_secs_f64())
}

const REFINED_ROUNDS: usize = 5;

pub(super) fn refined() -> anyhow::Result<Vec<Line>> {
    let Some(matrix) = matrix(PLANETLAB)? else { return Ok(vec![Line::skipped(PLANETLAB)]) };
    let draw = Draw::new(&matrix, AGENTS, SEED)?;
    let (mesh, nominees) = (draw.mesh(), draw.nominees());
    let (mut making, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..REFINED_ROUNDS {
        let began = processor_time()?;
        let elected = elect_held_out(&mesh, &nominees, LANDMARKS, SEED).context("elect")?;
        let landmarks: Vec<AgentId> = elected.into_iter().map(|elected| elected.agent).collect();
        let map = Refined::new(&mesh, &landmarks, &RefinedSwitches::default(), SEED).context("make the map")?;
        making.push(spent(began)?);
        let sites: Vec<Vec<(AgentId, Rtt)>> = (0..draw.sites()).map(|site| draw.measured(site, &landmarks)).collect();
        let began = processor_time()?;
        for site in &sites {
            let posterior = map.locate(site)?;
            for &agent in map.agents() {
                black_box(posterior.predict(agent));
            }
        }
        rates.push(f64::from(u32::try_from(sites.len())?) / spent(began)?);
    }
    Ok(vec![
        Line::at_most("elect by held-out agents and make the map of 30 agents, one core, s", median(making), 2.0),
        Line::at_least("refined: hosts/s on one core, each against 30 agents", median(rates), 2_000.0),
    ])
}
