//! Runs `lab sweep`: defines its arguments, simulates all cells of the layouts, in threads, and
//! prints the results.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use landfall_scheduler::model::Strategy;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::batch::{Batch, BatchResult, variation};
use super::results::{self, CellStore, Method, Row, methods};
use super::settings::{Cell, EXPERIMENTS, LayoutData, Point, Settings, Slots};
use super::survey::{LayoutMeasurements, Survey};
use super::targets::{self, LEAST_SHARE_SIMULATED};
use super::{list_scheduler, simulated_crawls};
use crate::world::scenario::Scenario;
use crate::world::site_pages::{SiteRequest, SiteWeb};

/// The folder with matrices of measured round trips, which is outside the repository.
pub const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");

/// The folder with matrices.
#[derive(Debug, Clone, Args)]
pub struct MatrixArgs {
    /// The folder with the measured round trips
    #[arg(long, value_name = "DIR", default_value = DATA)]
    pub data: PathBuf,
}

/// Arguments of `lab sweep` and `lab paper`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// The file of finished cells, for continuing an interrupted run [default: cells.jsonl in a
    /// folder beside the build]
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Delete the finished cells, and run all cells again
    #[arg(long)]
    pub fresh: bool,
}

impl RunArgs {
    /// Opens the file of cells that were finished with the same settings, programs and lab binary.
    /// `folder` contains the default file.
    pub fn open<T: Clone + Serialize + DeserializeOwned>(
        &self,
        folder: &str,
        settings: &str,
        programs: &[&Path],
    ) -> anyhow::Result<CellStore<T>> {
        let own = std::env::current_exe().context("find the lab's own executable")?;
        let file = self.resume.clone().map_or_else(|| results::default_file(folder, "cells.jsonl"), Ok)?;
        if self.fresh && file.exists() {
            std::fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        }
        CellStore::open(&file, &results::key(settings, &[&[own.as_path()], programs].concat())?)
    }
}

/// Arguments of `lab sweep`.
#[derive(Debug, Clone, Args)]
pub struct SweepArgs {
    #[command(flatten)]
    matrices: MatrixArgs,
    #[command(flatten)]
    run: RunArgs,
    /// Run only one seed, and change only one factor at a time
    #[arg(long)]
    quick: bool,
    /// Number of slots of every agent, instead of the value in the settings
    #[arg(long, value_name = "N")]
    slots: Option<NonZeroU32>,
    /// Number of cells to simulate at the same time
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct SimulatedResult {
    mb_per_min: f64,
    makespan_s: f64,
    /// The coefficient of variation of the busy times of agents.
    busy_variation: f64,
    preempted: usize,
}

/// The data that all simulated cells of a layout and a seed share.
pub struct LayoutSimulation<'a> {
    settings: &'a Settings,
    layout: &'a LayoutData,
    seed: u64,
    /// The index of each agent in the scenario. The agents are ordered by their ids in the
    /// scheduler.
    agents: Vec<usize>,
    survey: Survey,
    /// The task number of the first site. Random choices depend on the task numbers.
    first_task: u64,
    /// The requests of the crawl of each site, by mean page size.
    requests: BTreeMap<u32, Vec<Vec<SiteRequest>>>,
}

impl<'a> LayoutSimulation<'a> {
    /// Prepares a simulation whose measurements are the emulated round trips.
    pub fn new(settings: &'a Settings, layout: &'a LayoutData, seed: u64) -> anyhow::Result<Self> {
        let scenario = settings.scenario(layout, seed, settings.base)?;
        Self::surveyed(
            settings,
            layout,
            seed,
            &LayoutMeasurements::emulated(&scenario, settings.landmarks)?,
            seed.rotate_left(32),
        )
    }

    /// Prepares a simulation with the measurements and task numbers of a cluster. The simulation
    /// then makes the same random choices as the cluster's scheduler.
    pub fn surveyed(
        settings: &'a Settings,
        layout: &'a LayoutData,
        seed: u64,
        measurements: &LayoutMeasurements,
        first_task: u64,
    ) -> anyhow::Result<Self> {
        let scenario = settings.scenario(layout, seed, settings.base)?.ranked(&measurements.agents)?;
        let survey = Survey::of(&scenario, measurements)?;
        let agents = measurements.agents.clone();
        Ok(Self { settings, layout, seed, agents, survey, first_task, requests: BTreeMap::new() })
    }

    /// Simulates a cell. Simulations with different values of `draw` lose different packets.
    pub fn simulate(&mut self, point: Point, strategy: Strategy, draw: u64) -> anyhow::Result<BatchResult> {
        self.with_batch(point, strategy, draw, simulated_crawls::run)
    }

    /// Simulates a second crawl of the same sites, with the history of the first crawl.
    pub fn again(&mut self, point: Point, strategy: Strategy) -> anyhow::Result<BatchResult> {
        let history = self.simulate(point, strategy, 0)?.history;
        self.with_batch(point, strategy, 1, |batch| {
            simulated_crawls::run(Batch { before: Some(&history), first_task: batch.first_task ^ 1, ..batch })
        })
    }

    fn with_batch<T>(
        &mut self,
        point: Point,
        strategy: Strategy,
        draw: u64,
        run: impl FnOnce(Batch<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let scenario = self.settings.scenario(self.layout, self.seed, point)?.ranked(&self.agents)?;
        let depth = self.settings.web.max_depth;
        let requests = self.requests.entry(point.page_kb).or_insert_with(|| requests(&scenario, depth));
        run(Batch {
            scenario: &scenario,
            survey: &self.survey,
            requests,
            strategy,
            slots: self.settings.slots(point.per_site_rps),
            interval: Duration::from_secs_f64(point.per_site_rps.interval_s()),
            before: None,
            first_task: self.first_task,
            seed: self.seed ^ draw.rotate_left(32),
        })
    }
}

fn requests(scenario: &Scenario, max_depth: u32) -> Vec<Vec<SiteRequest>> {
    let sites = 0..scenario.sites.len();
    sites.map(|site| SiteWeb::draw(&scenario.web, scenario.seed, site).requests(max_depth)).collect()
}

/// Simulates all cells and prints the results.
pub fn sweep(args: &SweepArgs) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut settings = Settings::committed()?;
    let mut key = EXPERIMENTS.to_owned();
    if let Some(slots) = args.slots {
        eprintln!("{slots} slots per agent in every cell, instead of the settings' values");
        settings.slots = Slots { unthrottled: slots, throttled: slots };
        key.push_str(&format!("\n# slots {slots}"));
    }
    let strategies = settings.strategies.clone();
    let (layouts, missing) = settings.available_layouts(&args.matrices.data)?;
    missing.iter().for_each(|line| eprintln!("{line}"));
    let store = Mutex::new(args.run.open("sweep", &key, &[])?);
    let points = if args.quick { settings.one_at_a_time() } else { settings.product() };
    let seeds = if args.quick { &settings.seeds[..1] } else { &settings.seeds[..] };
    let simulations: Vec<(&LayoutData, u64)> =
        layouts.iter().flat_map(|layout| seeds.iter().map(move |seed| (layout, *seed))).collect();
    in_threads(args.threads, &simulations, |(layout, seed)| {
        simulate_field(&settings, layout, *seed, &points, &strategies, &store)
            .with_context(|| format!("simulate {} with seed {seed}", layout.name))
    })?;
    let store = store.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let rows = rows(&layouts, &points, &strategies, seeds, &store);
    print(&rows, &strategies);
    let preempted: usize = rows.iter().filter_map(|row| store.find(&row.cell)).map(|result| result.preempted).sum();
    eprintln!("{preempted} crawls were preempted and continued by other agents");
    eprintln!("{} cells in {:.1} s; stored in {}", rows.len(), began.elapsed().as_secs_f64(), store.file().display());
    Ok(())
}

/// Calls `work` for every item, in `threads` threads. Stops at the first error.
pub fn in_threads<T: Sync>(
    threads: u16,
    items: &[T],
    work: impl Fn(&T) -> anyhow::Result<()> + Sync,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || items.get(next.fetch_add(1, Ordering::Relaxed)).map(&work);
    thread::scope(|scope| {
        let one = || std::iter::from_fn(work).collect::<anyhow::Result<()>>();
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Simulates the unfinished cells of a layout and a seed.
fn simulate_field(
    settings: &Settings,
    layout: &LayoutData,
    seed: u64,
    points: &[Point],
    strategies: &[Strategy],
    store: &Mutex<CellStore<SimulatedResult>>,
) -> anyhow::Result<()> {
    let store = || store.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut simulation = None;
    for &point in points {
        for method in methods(strategies) {
            let cell = cell(layout, point, &method.name(), seed);
            if store().find(&cell).is_some() {
                continue;
            }
            let simulation = match &mut simulation {
                Some(simulation) => simulation,
                None => simulation.insert(LayoutSimulation::new(settings, layout, seed)?),
            };
            let result = simulate_cell(method, simulation, point)?;
            store().add(cell, result)?;
        }
    }
    Ok(())
}

/// Simulates a cell with a strategy or with the list scheduler, as `method` requires.
fn simulate_cell(
    method: Method,
    simulation: &mut LayoutSimulation<'_>,
    point: Point,
) -> anyhow::Result<SimulatedResult> {
    let result = match method {
        Method::First(strategy) => simulation.simulate(point, strategy, 0)?,
        Method::Again => simulation.again(point, Strategy::EarliestFinish)?,
        Method::List => {
            let schedule = simulation
                .with_batch(point, Strategy::EarliestFinish, 0, |batch| Ok(list_scheduler::list_schedule(&batch)))?;
            let (makespan_s, busy_variation) = (schedule.makespan.as_secs_f64(), variation(&schedule.busy));
            return Ok(SimulatedResult { mb_per_min: 0.0, makespan_s, busy_variation, preempted: 0 });
        }
    };
    let makespan_s = result.makespan.as_secs_f64();
    let mb_per_min = result.growth(simulation.settings.growth_share).mb_per_min;
    let (busy_variation, preempted) = (variation(&result.busy), result.preempted);
    Ok(SimulatedResult { mb_per_min, makespan_s, busy_variation, preempted })
}

pub fn cell(layout: &LayoutData, point: Point, strategy: &str, seed: u64) -> Cell {
    Cell { layout: layout.name.clone(), point, strategy: strategy.to_owned(), seed }
}

fn rows(
    layouts: &[LayoutData],
    points: &[Point],
    strategies: &[Strategy],
    seeds: &[u64],
    store: &CellStore<SimulatedResult>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for layout in layouts {
        for &point in points {
            for method in methods(strategies) {
                for &seed in seeds {
                    let cell = cell(layout, point, &method.name(), seed);
                    let Some(result) = store.find(&cell) else { continue };
                    let SimulatedResult { mb_per_min, makespan_s, busy_variation, .. } = *result;
                    let busy_variation = Some(busy_variation);
                    rows.push(Row { cell, mb_per_min, makespan_s, busy_variation, void: false });
                }
            }
        }
    }
    rows
}

fn print(rows: &[Row], strategies: &[Strategy]) {
    let groups = results::groups(rows);
    let names: Vec<String> = methods(strategies).into_iter().map(Method::name).collect();
    println!("Medians over seeds; in brackets the ratio to random's.\n{}", results::table(&groups, &names));
    targets::verdict(&groups, LEAST_SHARE_SIMULATED).iter().for_each(|line| println!("{line}"));
}
