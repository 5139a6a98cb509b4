//! `lab faithful`: simulates the paper's experiment as the paper's text describes it, with the map
//! and the strategies of the paper. Crawls never end, and all sites are crawled concurrently.
//!
//! The settings are in `tests/faithful.toml`. Unlike in `lab sweep`, no batch ends: growth is the
//! slope of the received bytes over a fixed time, as in the paper's Figure 2. For Figure 3, each
//! site is crawled alone.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use landfall_scheduler::model::Strategy;
use serde::{Deserialize, Serialize};

use self::network::{Network, requests};
use self::settings::{Cell, Connection, Contender, FAITHFUL, LayoutForm, Point, Settings};
use super::sweep::batch::{Batch, BatchResult, Carried};
use super::sweep::crawls;
use super::sweep::growth::BodyArrival;
use super::sweep::kept::CellStore;
use super::sweep::{Format, RunArgs, in_threads};
use crate::evidence::fit::LineFit;
use crate::evidence::float;
use crate::world::scenario::Scenario;

mod alone;
mod in_lab;
mod network;
mod settings;
mod verdict;

/// Seconds between two points of a curve of received bytes.
const STEP_S: f64 = 10.0;

/// The options that only a simulation uses.
const SIMULATED: [&str; 5] = ["format", "quick", "only", "our_slots", "threads"];

/// Arguments of `lab faithful`.
#[derive(Debug, Clone, Args)]
pub struct FaithfulArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Only the centre and the cells in which one factor differs from it, with one seed
    #[arg(long)]
    quick: bool,
    /// Simulate only these strategies, by name; print also those of former runs
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Slots of every agent for our strategies, instead of the settings' value
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    our_slots: Option<u32>,
    /// Instead crawl this number of sites in the lab with real agents, each site alone and once by every agent, and print the
    /// rates beside those of the simulation
    #[arg(long, value_name = "SITES", value_parser = clap::value_parser!(u16).range(1..))]
    #[arg(conflicts_with_all = SIMULATED, conflicts_with_all = ["resume", "fresh"])]
    alone: Option<u16>,
    /// Instead run the cells around the centre in the lab with real agents, each for this number of minutes, and print their
    /// growth beside that of the simulation
    #[arg(long, value_name = "MINUTES", value_parser = clap::value_parser!(u16).range(1..=60))]
    #[arg(conflicts_with = "alone", conflicts_with_all = SIMULATED)]
    in_lab: Option<u16>,
    /// Cells simulated at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
}

/// The result of a cell. The growth in each half and in the whole of the run is the slope of the
/// received bytes, fitted by least squares, in megabytes (10^6 bytes) per minute.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct CellResult {
    first_half: f64,
    second_half: f64,
    whole: f64,
    /// The fraction of the time in which the busiest access link carried bytes.
    busiest_link: f64,
    /// The mean round trip of the paths, weighted by the bytes that used each path, in
    /// milliseconds.
    byte_rtt_ms: f64,
    /// The fraction of bytes that passed between two carriers.
    between_carriers: f64,
    preempted: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    #[serde(flatten)]
    cell: Cell,
    #[serde(flatten)]
    result: CellResult,
}

/// The output of `--format json`.
#[derive(Serialize)]
struct JsonOutput<'a> {
    cells: &'a [Row],
    figure3: &'a [alone::SingleSites],
}

/// The indices of the agents that are used as landmarks: for each of the paper's landmarks, the
/// first agent of its city and carrier.
pub fn landmarks_by_hand(layout: &str, scenario: &Scenario) -> anyhow::Result<Vec<usize>> {
    network::landmarks(&Settings::committed()?, layout, scenario)
}

/// Simulates the unfinished cells, and prints all cells. A missed target is not an error.
pub async fn faithful(args: &FaithfulArgs) -> anyhow::Result<()> {
    let settings = Settings::committed()?;
    match (args.alone, args.in_lab) {
        (Some(sites), _) => in_lab::single::figure3(&settings, sites.into()).await,
        (None, Some(minutes)) => in_lab::window::cells(&settings, &args.run, minutes).await,
        (None, None) => tokio::task::block_in_place(|| simulate(args, settings)),
    }
}

fn simulate(args: &FaithfulArgs, mut settings: Settings) -> anyhow::Result<()> {
    let began = Instant::now();
    let known: Vec<String> = settings.contenders().map(|contender| contender.to_string()).collect();
    if let Some(unknown) = args.only.iter().find(|name| !known.contains(name)) {
        anyhow::bail!("--only: no strategy is called '{unknown}': give one of {}", known.join(", "));
    }
    let mut key = FAITHFUL.to_owned();
    if let Some(slots) = args.our_slots {
        eprintln!("{slots} slots per agent for our strategies, instead of {}", settings.slots);
        settings.our_slots = slots;
        key.push_str(&format!("\n# our slots {slots}"));
    }
    let store = Mutex::new(args.run.open("faithful", &key, &[])?);
    let points = if args.quick { settings.around_the_centre() } else { settings.product() };
    let seeds = if args.quick { &settings.seeds[..1] } else { &settings.seeds[..] };
    let networks: Vec<(&LayoutForm, u64)> =
        settings.layouts.iter().flat_map(|form| seeds.iter().map(move |seed| (form, *seed))).collect();
    let figure3 = Mutex::new(Vec::new());
    in_threads(args.threads, &networks, |&(form, seed)| {
        let said = || format!("simulate the layout {} with seed {seed}", form.name);
        let network = Network::new(&settings, form, seed).with_context(said)?;
        run_network(&settings, &network, (form, seed), &points, (args.only.as_slice(), &store)).with_context(said)?;
        for point in [settings.centre, settings.where_distance_counts()] {
            let rates = alone::rates(&settings, &network, point, seed);
            figure3.lock().unwrap_or_else(PoisonError::into_inner).push((form.name.clone(), point, rates));
        }
        Ok(())
    })?;
    let (store, figure3) = (store.into_inner().unwrap_or_else(PoisonError::into_inner), figure3.into_inner());
    let figure3 = alone::summary(figure3.unwrap_or_else(PoisonError::into_inner));
    let rows = rows(&settings, &points, seeds, &store);
    if args.run.format == Format::Json {
        let printed = JsonOutput { cells: &rows, figure3: &figure3 };
        println!("{}", serde_json::to_string(&printed).context("write the cells as JSON")?);
    } else {
        print!("{}{}", verdict::text(&settings, &rows), alone::text(&figure3));
    }
    let took = began.elapsed().as_secs_f64();
    eprintln!("{} cells in {took:.1} s; stored in {}", rows.len(), store.file().display());
    Ok(())
}

fn run_network(
    settings: &Settings,
    network: &Network,
    (form, seed): (&LayoutForm, u64),
    points: &[Point],
    (only, store): (&[String], &Mutex<CellStore<CellResult, Cell>>),
) -> anyhow::Result<()> {
    let wanted = |contender: &Contender| only.is_empty() || only.contains(&contender.to_string());
    let store = || store.lock().unwrap_or_else(PoisonError::into_inner);
    for &point in points {
        let scenario = network.at(point);
        let requests = requests(&scenario, Duration::from_millis(point.server_ms));
        for contender in settings.contenders().filter(wanted) {
            let cell = Cell { layout: form.name.clone(), point, strategy: contender.to_string(), seed };
            if store().find(&cell).is_some() {
                continue;
            }
            let chosen = match contender {
                Contender::Other(strategy) => Some(network.chosen(strategy, seed)?),
                _ => None,
            };
            let (scenario, requests) = (&scenario, requests.as_slice());
            let batch = batch(settings, network, point, contender, seed);
            let survey = chosen.as_ref().unwrap_or(batch.survey);
            let batch = Batch { scenario, requests, survey, ..batch };
            let result = CellResult::of(&crawls::run(batch)?, scenario, settings);
            store().add(cell, result)?;
        }
    }
    Ok(())
}

/// A batch whose crawls never end, and whose sites are all crawled concurrently.
fn batch<'a>(settings: &Settings, network: &'a Network, point: Point, contender: Contender, seed: u64) -> Batch<'a> {
    let (strategy, survey, slots) = match contender {
        Contender::Published(strategy) => (strategy, &network.published, settings.slots),
        Contender::Ours(Strategy::GnpConfirmed) => (Strategy::GnpConfirmed, &network.confirmed, settings.our_slots),
        Contender::Ours(strategy) => (strategy, &network.ours, settings.our_slots),
        // For `Other`, the caller replaces this survey by the result of `Network::chosen`.
        Contender::Other(_) | Contender::Nearest => (Strategy::GNP_TOP1, &network.exact, settings.slots),
    };
    Batch {
        scenario: &network.scenario,
        survey,
        requests: &[],
        strategy,
        slots,
        interval: Duration::ZERO,
        before: None,
        first_task: seed.rotate_left(32),
        seed,
        window: Some(window(settings)),
        reconnects: point.connection == Connection::PerRequest,
    }
}

fn window(settings: &Settings) -> Duration {
    Duration::from_secs(60 * u64::from(settings.window_min))
}

impl CellResult {
    fn of(result: &BatchResult, scenario: &Scenario, settings: &Settings) -> Self {
        let window_s = window(settings).as_secs_f64();
        let curve = curve(&result.arrived, window_s);
        let half = curve.len() / 2;
        let sum = |of: fn(&Carried) -> f64| result.carried.iter().map(of).sum::<f64>();
        let bytes = sum(|carried| carried.bytes).max(1.0);
        let busy = |(agent, carried): (usize, &Carried)| carried.bytes / (scenario.bytes_per_s(agent) * window_s);
        Self {
            first_half: slope(curve.get(..=half).unwrap_or_default()),
            second_half: slope(curve.get(half..).unwrap_or_default()),
            whole: slope(&curve),
            busiest_link: result.carried.iter().enumerate().map(busy).fold(0.0, f64::max),
            byte_rtt_ms: sum(|carried| carried.byte_ms) / bytes,
            between_carriers: sum(|carried| carried.between_carriers) / bytes,
            preempted: result.preempted,
        }
    }
}

/// The points of a curve: minutes since the start, and all megabytes that had arrived by this time.
fn curve(arrived: &[BodyArrival], window_s: f64) -> Vec<(f64, f64)> {
    let steps = (1..).map(|step| float(step) * STEP_S).take_while(|at_s| *at_s <= window_s);
    let mut curve: Vec<(f64, f64)> = [0.0].into_iter().chain(steps).map(|at_s| (at_s / 60.0, 0.0)).collect();
    for body in arrived {
        // The first point of the curve at or after the arrival of the body.
        let step = curve.partition_point(|(minutes, _)| minutes * 60.0 < body.at_s);
        if let Some((_, megabytes)) = curve.get_mut(step) {
            *megabytes += float(body.bytes) / 1e6;
        }
    }
    let mut so_far = 0.0;
    for (_, megabytes) in &mut curve {
        so_far += *megabytes;
        *megabytes = so_far;
    }
    curve
}

/// The slope of the line through the points; zero if there are fewer than two points.
fn slope(points: &[(f64, f64)]) -> f64 {
    LineFit::of(points).map_or(0.0, |line| line.slope)
}

fn rows(settings: &Settings, points: &[Point], seeds: &[u64], store: &CellStore<CellResult, Cell>) -> Vec<Row> {
    let mut rows = Vec::new();
    for form in &settings.layouts {
        for &point in points {
            for contender in settings.contenders() {
                for &seed in seeds {
                    let cell = Cell { layout: form.name.clone(), point, strategy: contender.to_string(), seed };
                    let Some(result) = store.find(&cell).copied() else { continue };
                    rows.push(Row { cell, result });
                }
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_the_slope_of_the_bytes_in_the_window() {
        // 1 MB/s in the first minute, and 2 MB/s in the second minute.
        let bodies = (1..=120)
            .map(|second| BodyArrival { at_s: float(second), bytes: if second <= 60 { 1_000_000 } else { 2_000_000 } });
        let late = BodyArrival { at_s: 121.0, bytes: 1_000_000_000 };
        let curve = curve(&bodies.chain([late]).collect::<Vec<_>>(), 120.0);
        assert_eq!((curve.len(), curve[12]), (13, (2.0, 180.0)));
        assert!((slope(&curve[..=6]) - 60.0).abs() < 1e-9 && (slope(&curve[6..]) - 120.0).abs() < 1e-9);
        assert_eq!(slope(&[(1.0, 5.0)]), 0.0);
    }

    #[test]
    fn nearer_agents_grow_faster_and_shift_less_between_carriers() {
        let settings = Settings { sites: 60, window_min: 2, ..Settings::committed().unwrap() };
        let network = Network::with_exact_distances(&settings, &settings.layouts[0], 1).unwrap();
        let point = Point { access_mbit: 20.0, server_ms: 12, ..settings.centre };
        let scenario = network.at(point);
        let requests = requests(&scenario, Duration::from_millis(point.server_ms));
        let run = |strategy| {
            let batch = batch(&settings, &network, point, Contender::Published(strategy), 1);
            let result = crawls::run(Batch { scenario: &scenario, requests: &requests, ..batch }).unwrap();
            CellResult::of(&result, &scenario, &settings)
        };
        let [random, top1, top3] = [Strategy::Random, Strategy::GNP_TOP1, Strategy::GNP_TOP3].map(run);
        assert!(top1.whole > random.whole && top3.whole > random.whole, "{random:?} {top1:?} {top3:?}");
        assert!(top3.byte_rtt_ms < 0.8 * random.byte_rtt_ms, "{random:?} {top3:?}");
        assert!(top3.between_carriers < random.between_carriers, "{random:?} {top3:?}");
        assert!(0.0 < top1.busiest_link && top1.busiest_link <= 1.0, "{top1:?}");
        assert!((random.first_half / random.second_half - 1.0).abs() < 0.1, "sites have no end: {random:?}");
    }
}
