//! `lab sweep`: the paper's experiment in virtual time, over the full product of the factors.
//!
//! A discrete-event simulation with the lab's transfer model and the scheduler's own strategy code (`sweep/crawls`, `sweep/fleet`). The
//! settings are `tests/experiments.toml`; `lab paper` runs the same cells with real agents, and compares.

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

use self::crawls::{Batch, Ended};
use self::grid::Row;
use self::kept::Kept;
use self::measured::Measured;
use self::settings::{Cell, EXPERIMENTS, Ground, Point, Settings, Slots};
use self::survey::Survey;
use crate::world::scenario::Scenario;
use crate::world::web::{Asked, SiteWeb};

pub mod crawls;
pub mod fleet;
pub mod grid;
pub mod growth;
pub mod kept;
pub mod list;
pub mod measured;
pub mod settings;
pub mod survey;

/// Where the measured round trips are, beside the repository.
pub const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/data");
/// Ours must reach this of the best of the others in every cell.
const LEAST_SHARE: f64 = 0.97;
/// What stands for a strategy where ours crawls sites again: what crawls of them taught is known then, their sizes most of all.
const AGAIN: &str = "earliest-finish, again";
/// And for the list scheduler that knows every round trip, rate and size.
const LIST: &str = "list, all known";

/// How an experiment is printed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables for people.
    #[default]
    Table,
    /// One object.
    Json,
}

/// What may be typed after `lab sweep` and `lab paper`.
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// Where the measured round trips are
    #[arg(long, value_name = "DIR", default_value = DATA)]
    pub data: PathBuf,
    /// The file of finished cells, from which a run goes on [default: cells.jsonl in a folder beside the build]
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// Runs every cell anew
    #[arg(long)]
    pub fresh: bool,
    /// How it is printed
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
}

impl RunArgs {
    /// The finished cells of these settings by these programs and the lab's own; `folder` is the default file's.
    pub fn open<T>(&self, folder: &str, settings: &str, programs: &[&Path]) -> anyhow::Result<Kept<T>>
    where
        T: Clone + Serialize + DeserializeOwned,
    {
        let own = std::env::current_exe().context("find the lab's own executable")?;
        let file = self.resume.clone().map_or_else(|| kept::default_file(folder, "cells.jsonl"), Ok)?;
        if self.fresh && file.exists() {
            std::fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))?;
        }
        Kept::open(&file, &kept::key(settings, &[&[own.as_path()], programs].concat())?)
    }
}

/// What may be typed after `lab sweep`.
#[derive(Debug, Clone, Args)]
pub struct SweepArgs {
    #[command(flatten)]
    run: RunArgs,
    /// One seed, and only one factor changed at a time
    #[arg(long)]
    quick: bool,
    /// Slots of every agent in every cell instead of the settings', to see what they do; the output says so
    #[arg(long, value_name = "N")]
    slots: Option<NonZeroU32>,
    /// Cells simulated at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
}

/// What a simulated cell came to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Came {
    mb_per_min: f64,
    makespan_s: f64,
    requests_per_s: f64,
    /// The standard deviation of the agents' busy times over their mean.
    busy_variation: f64,
    /// Crawls that were taken back from an agent and went on at another.
    recalled: usize,
}

/// A layout and a seed, and everything that is the same for all of its cells.
pub struct Field<'a> {
    settings: &'a Settings,
    ground: &'a Ground,
    seed: u64,
    /// The agents' indices in the scenario, by rank.
    agents: Vec<usize>,
    survey: Survey,
    /// The first site's task in every cell: agents are drawn with the tasks' numbers.
    first_task: u64,
    /// What crawls ask for, by the size of pages.
    requests: BTreeMap<u32, Vec<Vec<Asked>>>,
}

impl<'a> Field<'a> {
    /// Surveys a layout by its emulated round trips.
    pub fn new(settings: &'a Settings, ground: &'a Ground, seed: u64) -> anyhow::Result<Self> {
        let scenario = settings.scenario(ground, seed, settings.base)?;
        Self::surveyed(
            settings,
            ground,
            seed,
            &Measured::emulated(&scenario, settings.landmarks)?,
            seed.rotate_left(32),
        )
    }

    /// Takes what a cluster measured, whose cells begin with this task: its scheduler draws the same agents.
    pub fn surveyed(
        settings: &'a Settings,
        ground: &'a Ground,
        seed: u64,
        found: &Measured,
        first_task: u64,
    ) -> anyhow::Result<Self> {
        let scenario = settings.scenario(ground, seed, settings.base)?.ranked(&found.agents)?;
        let survey = Survey::of(&scenario, found)?;
        let agents = found.agents.clone();
        Ok(Self { settings, ground, seed, agents, survey, first_task, requests: BTreeMap::new() })
    }

    /// Simulates one of its cells; `draw` tells apart runs of the same cell, in which other packets are lost.
    pub fn simulate(&mut self, point: Point, strategy: Strategy, draw: u64) -> anyhow::Result<Ended> {
        self.with(point, strategy, draw, crawls::run)
    }

    /// Simulates a crawl of the same sites after that, with what it taught.
    fn again(&mut self, point: Point, strategy: Strategy) -> anyhow::Result<Ended> {
        let taught = self.simulate(point, strategy, 0)?.taught;
        // Tasks of a second batch have other numbers.
        self.with(point, strategy, 1, |batch| {
            crawls::run(Batch { before: Some(&taught), first_task: batch.first_task ^ 1, ..batch })
        })
    }

    fn with<T>(
        &mut self,
        point: Point,
        strategy: Strategy,
        draw: u64,
        play: impl FnOnce(Batch<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let scenario = self.settings.scenario(self.ground, self.seed, point)?.ranked(&self.agents)?;
        let depth = self.settings.web.max_depth;
        let requests = self.requests.entry(point.page_kb).or_insert_with(|| requests(&scenario, depth));
        play(Batch {
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

fn requests(scenario: &Scenario, max_depth: u32) -> Vec<Vec<Asked>> {
    let sites = 0..scenario.sites.len();
    sites.map(|site| SiteWeb::draw(&scenario.web, scenario.seed, site).requests(max_depth)).collect()
}

/// Simulates every cell and prints it.
pub fn sweep(args: &SweepArgs) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut settings = Settings::committed()?;
    let mut key = EXPERIMENTS.to_owned();
    if let Some(slots) = args.slots {
        eprintln!("{slots} slots an agent in every cell: these are not the settings'");
        settings.slots = Slots { unthrottled: slots, throttled: slots };
        key.push_str(&format!("\n# slots {slots}"));
    }
    let strategies = settings.strategies.clone();
    let (grounds, missing) = settings.grounds(&args.run.data)?;
    missing.iter().for_each(|line| eprintln!("{line}"));
    let kept = Mutex::new(args.run.open("sweep", &key, &[])?);
    let points = if args.quick { settings.one_at_a_time() } else { settings.product() };
    let seeds = if args.quick { &settings.seeds[..1] } else { &settings.seeds[..] };
    let fields: Vec<(&Ground, u64)> =
        grounds.iter().flat_map(|ground| seeds.iter().map(move |seed| (ground, *seed))).collect();
    let next = AtomicUsize::new(0);
    let work = || -> anyhow::Result<()> {
        while let Some((ground, seed)) = fields.get(next.fetch_add(1, Ordering::Relaxed)) {
            simulate_field(&settings, ground, *seed, &points, &strategies, &kept)
                .with_context(|| format!("simulate {} with seed {seed}", ground.name))?;
        }
        Ok(())
    };
    thread::scope(|scope| -> anyhow::Result<()> {
        let workers: Vec<_> = (0..args.threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let kept = kept.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let rows = rows(&grounds, &points, &strategies, seeds, &kept);
    print(&rows, &strategies, args.run.format)?;
    let recalled: usize = rows.iter().filter_map(|row| kept.find(&row.cell)).map(|came| came.recalled).sum();
    eprintln!("{recalled} crawls were taken back from their agents and went on at others");
    eprintln!("{} cells in {:.1} s; kept in {}", rows.len(), began.elapsed().as_secs_f64(), kept.file().display());
    Ok(())
}

/// Simulates what is not finished of a layout and a seed.
fn simulate_field(
    settings: &Settings,
    ground: &Ground,
    seed: u64,
    points: &[Point],
    strategies: &[Strategy],
    kept: &Mutex<Kept<Came>>,
) -> anyhow::Result<()> {
    let kept = || kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut field = None;
    for &point in points {
        for player in players(strategies) {
            let cell = cell(ground, point, player.name(), seed);
            if kept().find(&cell).is_some() {
                continue;
            }
            let field = match &mut field {
                Some(field) => field,
                None => field.insert(Field::new(settings, ground, seed)?),
            };
            let came = player.play(field, point)?;
            kept().keep(cell, came)?;
        }
    }
    Ok(())
}

/// Who plays a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Player {
    /// A strategy that crawls the sites for the first time.
    First(Strategy),
    /// Ours, which has crawled them before.
    Again,
    /// The list scheduler that knows everything.
    List,
}

/// Everybody who plays each cell; the others only beside ours.
fn players(strategies: &[Strategy]) -> Vec<Player> {
    let ours = strategies.contains(&Strategy::EarliestFinish);
    let others = [Player::Again, Player::List].into_iter().filter(|_| ours);
    strategies.iter().copied().map(Player::First).chain(others).collect()
}

impl Player {
    fn name(self) -> &'static str {
        match self {
            Self::First(strategy) => strategy.name(),
            Self::Again => AGAIN,
            Self::List => LIST,
        }
    }

    fn play(self, field: &mut Field<'_>, point: Point) -> anyhow::Result<Came> {
        let ended = match self {
            Self::First(strategy) => field.simulate(point, strategy, 0)?,
            Self::Again => field.again(point, Strategy::EarliestFinish)?,
            Self::List => {
                let listed = field.with(point, Strategy::EarliestFinish, 0, |batch| Ok(list::listed(&batch)))?;
                let (makespan_s, busy_variation) = (listed.makespan.as_secs_f64(), crawls::variation(&listed.busy));
                return Ok(Came { mb_per_min: 0.0, makespan_s, requests_per_s: 0.0, busy_variation, recalled: 0 });
            }
        };
        let makespan_s = ended.makespan.as_secs_f64();
        let mb_per_min = ended.growth(field.settings.growth_share).mb_per_min;
        let requests_per_s = crate::evidence::figures::float(ended.requests) / makespan_s;
        let (busy_variation, recalled) = (crawls::variation(&ended.busy), ended.recalled);
        Ok(Came { mb_per_min, makespan_s, requests_per_s, busy_variation, recalled })
    }
}

/// A cell of the grid.
pub fn cell(ground: &Ground, point: Point, strategy: &str, seed: u64) -> Cell {
    Cell { layout: ground.name.clone(), point, strategy: strategy.to_owned(), seed }
}

fn rows(grounds: &[Ground], points: &[Point], strategies: &[Strategy], seeds: &[u64], kept: &Kept<Came>) -> Vec<Row> {
    let mut rows = Vec::new();
    for ground in grounds {
        for &point in points {
            for player in players(strategies) {
                for &seed in seeds {
                    let cell = cell(ground, point, player.name(), seed);
                    let Some(came) = kept.find(&cell) else { continue };
                    let source = Some("sweep".to_owned());
                    let Came { mb_per_min, makespan_s, busy_variation, .. } = *came;
                    let busy_variation = Some(busy_variation);
                    rows.push(Row { cell, mb_per_min, makespan_s, busy_variation, void: false, source });
                }
            }
        }
    }
    rows
}

fn print(rows: &[Row], strategies: &[Strategy], format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        println!("{}", serde_json::to_string(&serde_json::json!({ "grid": rows })).context("write the grid as JSON")?);
        return Ok(());
    }
    let groups = grid::groups(rows);
    let names: Vec<&str> = players(strategies).into_iter().map(Player::name).collect();
    println!("Medians over seeds; in brackets what they are of random's.\n{}", grid::table(&groups, &names));
    grid::verdict(&groups, LEAST_SHARE).iter().for_each(|line| println!("{line}"));
    Ok(())
}
