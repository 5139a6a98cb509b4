//! How fast the plain tier is: hosts placed a second, the nearest agents of a million sites, fit and election.
//!
//! Per-core figures are in processor time of one thread, so that other work on the machine disturbs them little. The
//! solvers, `violin` and a plain loop around argmin take turns, round after round, on the same hosts of the same map;
//! each figure is the median of its rounds, each ratio the median of the ratios within a round.
//!
//! Accuracy is not compared here. `violin` is Vivaldi: it moves a host a little at each observation and needs many of
//! them; one of its placements is nine landmarks observed [`VIOLIN_ROUNDS`] times.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use landfall_scheduler::gnp::{self, Embedding, Placement, Solver};
use landfall_scheduler::model::{AgentId, EmbeddingEpoch, Rtt};
use landfall_scheduler::simulate::{Draw, Matrix};
use nix::time::{ClockId, clock_gettime};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use violin::heapless::VecD;
use violin::{Coord, Node};

use super::Line;

mod plain_argmin;

const MATRIX: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data/planetlab490.matrix.csv.gz");
const AGENTS: usize = 30;
const LANDMARKS: usize = 9;
const DIMENSIONS: usize = 8;
const SEED: u64 = 0;
/// Rounds in which everything takes its turn.
const ROUNDS: usize = 7;
/// How often a fast thing goes over all hosts in one turn, so that a turn is some tens of milliseconds.
const BULK_PASSES: usize = 20;
const SIMPLEX_PASSES: usize = 2;
/// Observations of each landmark that make one placement of `violin`.
const VIOLIN_ROUNDS: usize = 16;
/// The question of the nearest agents.
const FLEET: i64 = 1_000;
const SITES: usize = 1_000_000;

/// What a host's landmarks measured.
type Measured = Vec<(AgentId, Rtt)>;

/// Runs the section.
pub(super) fn run() -> anyhow::Result<Vec<Line>> {
    if !Path::new(MATRIX).exists() {
        return Ok(vec![Line::plain("skipped: the measured matrix of PlanetLab is not there", "")]);
    }
    let matrix = Matrix::read(Path::new(MATRIX))?;
    let draw = Draw::new(&matrix, AGENTS, SEED)?;
    let (fitting, map) = fit(&draw)?;
    let hosts: Vec<Measured> =
        (0..draw.sites()).map(|site| draw.measured(site, map.landmarks())).filter(|host| !host.is_empty()).collect();
    let mut lines = solvers(&map, &hosts)?;
    lines.push(Line::at_most("elect and fit 30 agents, 9 landmarks, 8-D, one core, s", fitting, 2.0));
    lines.extend(nearest()?);
    Ok(lines)
}

/// The median seconds of electing and fitting, and the map.
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

/// Hosts placed a second, by everything that places hosts.
fn solvers(map: &Embedding, hosts: &[Measured]) -> anyhow::Result<Vec<Line>> {
    let locator = map.locator()?;
    let violin = Vivaldi::new(map)?;
    let plain = plain_argmin::Problem::new(map)?;
    let by = |solver: Solver, host: &Measured| -> anyhow::Result<f64> { Ok(locator.locate(host, solver)?.fit_error) };
    let (mut bulk, mut simplex, mut vivaldi, mut naive) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        bulk.push(rate(hosts, BULK_PASSES, |host| by(Solver::LevenbergMarquardt, host))?);
        simplex.push(rate(hosts, SIMPLEX_PASSES, |host| by(Solver::Simplex, host))?);
        vivaldi.push(rate(hosts, BULK_PASSES, |host| Ok(violin.place(host)))?);
        naive.push(rate(hosts, 1, |host| plain.place(host))?);
    }
    let ratio = |of: &[f64], to: &[f64]| median(of.iter().zip(to).map(|(a, b)| a / b).collect());
    let times = |ratio: f64| format!("{ratio:.2} x");
    let violin_name = format!("violin, 8-D, 9 landmarks x {VIOLIN_ROUNDS} observations");
    Ok(vec![
        Line::at_least(
            "plain, bulk path: hosts/s on one core (9 landmarks, 8-D, 30 agents)",
            median(bulk.clone()),
            100_000.0,
        ),
        Line::at_least("plain, simplex: hosts/s on one core", median(simplex.clone()), 10_000.0),
        Line::plain(format!("{violin_name}: hosts/s"), format!("{:.0}", median(vivaldi.clone()))),
        Line::plain(
            "argmin's simplex in a plain loop, same objective, one start: hosts/s",
            format!("{:.0}", median(naive.clone())),
        ),
        Line::plain(format!("bulk path to {violin_name}"), times(ratio(&bulk, &vivaldi))),
        Line::plain("bulk path to the plain loop", times(ratio(&bulk, &naive))),
        Line::plain("simplex to the plain loop", times(ratio(&simplex, &naive))),
    ])
}

/// Hosts a second.
fn rate(hosts: &[Measured], passes: usize, place: impl Fn(&Measured) -> anyhow::Result<f64>) -> anyhow::Result<f64> {
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

/// `violin` with the landmarks already where they belong.
struct Vivaldi {
    landmarks: Vec<(AgentId, Coord<VecD<DIMENSIONS>>)>,
    start: Node<VecD<DIMENSIONS>>,
}

impl Vivaldi {
    /// Warmed up on the distances of the map: landmarks observe one another a hundred times.
    fn new(map: &Embedding) -> anyhow::Result<Self> {
        let mut nodes: Vec<Node<VecD<DIMENSIONS>>> = map.landmarks().iter().map(|_| Node::rand()).collect();
        for _ in 0..100 {
            for (i, a) in map.landmarks().iter().enumerate() {
                for (j, b) in map.landmarks().iter().enumerate().filter(|&(j, _)| j != i) {
                    let (a, b) = (map.placement(*a).context("placed")?, map.placement(*b).context("placed")?);
                    let seen = nodes[j].coordinate().clone();
                    nodes[i].update(duration(map.predict(a, b)?), &seen);
                }
            }
        }
        let landmarks =
            map.landmarks().iter().copied().zip(nodes.iter().map(|node| node.coordinate().clone())).collect();
        Ok(Self { landmarks, start: Node::rand() })
    }

    fn place(&self, host: &Measured) -> f64 {
        let mut node = self.start.clone();
        for _ in 0..VIOLIN_ROUNDS {
            for (agent, rtt) in host {
                if let Some((_, landmark)) = self.landmarks.iter().find(|(landmark, _)| landmark == agent) {
                    node.update(duration(*rtt), landmark);
                }
            }
        }
        node.error_estimate()
    }
}

/// The nearest agents of a million sites, on two threads, in time by the clock on the wall.
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

fn duration(rtt: Rtt) -> Duration {
    Duration::from_secs_f64(rtt.as_millis_f64() / 1e3)
}

/// Processor time of this thread so far.
pub(super) fn processor_time() -> anyhow::Result<Duration> {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).context("read the thread's clock")
}

/// Seconds of processor time since then.
pub(super) fn spent(began: Duration) -> anyhow::Result<f64> {
    Ok((processor_time()? - began).as_secs_f64())
}

/// The middle one; not a number where there is none.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
