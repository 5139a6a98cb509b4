//! Cells in the lab: all sites are crawled concurrently, and no crawl ends within the measured
//! time.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use landfall_scheduler::model::Strategy;
use landfall_scheduler::model::seed::spread;
use landfall_scheduler::strategy::{Site, choose};
use serde::{Deserialize, Serialize};

use super::{Crawlers, MAX_PAGES, requests, scenario_at};
use crate::cluster::Binaries;
use crate::evidence::float;
use crate::experiments::faithful::network::Network;
use crate::experiments::faithful::settings::{Cell, Contender, FAITHFUL, Point, Settings};
use crate::experiments::faithful::{CellResult, batch, curve, slope};
use crate::experiments::sweep::batch::Batch;
use crate::experiments::sweep::grid::median;
use crate::experiments::sweep::growth::BodyArrival;
use crate::experiments::sweep::measured::agent_index;
use crate::experiments::sweep::{RunArgs, crawls};
use crate::world::World;

/// Time for the crawls to start, before bytes are counted.
const START: Duration = Duration::from_secs(15);

/// The growth of a cell, in megabytes (10^6 bytes) per minute.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Growth {
    lab: f64,
    simulation: f64,
}

/// Runs the published strategies for `minutes` with the first layout and every seed: at the centre,
/// at the points around it, and at the point where the growth with `random` is about that in the
/// paper. Prints the growth beside that of the simulation. A cell with a void run is not finished.
pub(in crate::experiments::faithful) async fn cells(
    settings: &Settings,
    run: &RunArgs,
    minutes: u16,
) -> anyhow::Result<()> {
    let settings = Settings { window_min: minutes.into(), ..settings.clone() };
    let form = settings.layouts.first().context("the settings have no layout")?;
    let key = format!("{FAITHFUL}\n# in the lab, {minutes} minutes");
    let mut store = run.open::<Growth, Cell>("faithful-in-lab", &key, &[&Binaries::find()?.agent])?;
    let mut points = settings.around_the_centre();
    points.push(settings.slowest_servers());
    let cell = |point, strategy: &Strategy, seed| Cell {
        layout: form.name.clone(),
        point,
        strategy: strategy.to_string(),
        seed,
    };
    for &seed in &settings.seeds {
        let pairs = points.iter().flat_map(|point| settings.published.iter().map(move |strategy| (*point, strategy)));
        let pairs: Vec<(Point, &Strategy)> =
            pairs.filter(|&(point, strategy)| store.find(&cell(point, strategy, seed)).is_none()).collect();
        if pairs.is_empty() {
            continue;
        }
        let network = Network::new(&settings, form, seed)?;
        for (point, strategy) in pairs {
            let cell = cell(point, strategy, seed);
            if let Some(growth) = grow(&settings, &network, &cell, *strategy).await? {
                store.add(cell, growth)?;
            }
        }
    }
    println!("growth over {minutes} minutes in MB a minute, layout {}, medians of seeds", form.name);
    for point in points {
        let Point { access_mbit, page_kb, server_ms, connection } = point;
        println!("{access_mbit} Mbit/s, {page_kb} KB, server {server_ms} ms, connection {connection}");
        for strategy in &settings.published {
            let of_seed = |seed| {
                let find = |strategy| store.find(&cell(point, strategy, seed)).copied();
                Some((find(strategy)?, find(&settings.published[0])?))
            };
            let seeds: Vec<(Growth, Growth)> = settings.seeds.iter().copied().filter_map(of_seed).collect();
            println!("  {strategy:<10} {}", line(&seeds, &settings.published[0]));
        }
    }
    eprintln!("stored in {}", store.file().display());
    Ok(())
}

/// Describes the growth with a strategy by medians over the seeds. Each pair has the growth with
/// this strategy, and the growth with the strategy `first`.
fn line(seeds: &[(Growth, Growth)], first: &Strategy) -> String {
    let median = |of: fn(&(Growth, Growth)) -> f64| median(seeds.iter().map(of).collect()).unwrap_or(f64::NAN);
    let agreement = |(growth, _): &(Growth, Growth)| growth.lab / growth.simulation;
    format!(
        "lab {:7.1} ({:.3} of {first})  simulation {:7.1} ({:.3})  lab / simulation {:.3} to {:.3} ({} seeds)",
        median(|(growth, _)| growth.lab),
        median(|(growth, first)| growth.lab / first.lab),
        median(|(growth, _)| growth.simulation),
        median(|(growth, first)| growth.simulation / first.simulation),
        seeds.iter().map(agreement).fold(f64::NAN, f64::min),
        seeds.iter().map(agreement).fold(f64::NAN, f64::max),
        seeds.len(),
    )
}

/// Runs a cell in the lab and in the simulation; `None` if the run in the lab is void.
async fn grow(
    settings: &Settings,
    network: &Network,
    cell: &Cell,
    strategy: Strategy,
) -> anyhow::Result<Option<Growth>> {
    let window = Duration::from_secs(60 * u64::from(settings.window_min));
    let (point, seed) = (cell.point, cell.seed);
    let mut scenario = scenario_at(network, point);
    // The server delays each page, so no crawl reaches this number of pages.
    let pages = (window + 2 * START).as_millis() / u128::from(point.server_ms) + 1;
    anyhow::ensure!(pages < MAX_PAGES.into(), "--in-lab: crawls would end within {} minutes", settings.window_min);
    scenario.web.max_pages = usize::try_from(pages)?;
    scenario.web.mean_pages = float(scenario.web.max_pages);
    let requests = requests(&scenario);
    let batch = batch(settings, network, point, Contender::Published(strategy), seed);
    let batch = Batch { scenario: &scenario, requests: &requests, ..batch };
    let agents: Option<Vec<usize>> = (0..).take(scenario.sites.len()).map(|site| chosen(&batch, site)).collect();
    let agents = agents.context("a site has no agent")?;
    let world = World::start(scenario.clone()).await?;
    let lab = growth(&world, &agents, window).await?;
    let (late, void) = (world.lateness().quantile(0.99), world.void());
    world.stop().await;
    let simulation = CellResult::of(&crawls::run(batch)?, &scenario, settings).whole;
    let Point { access_mbit, page_kb, server_ms, connection } = point;
    eprintln!(
        "{access_mbit} Mbit/s, {page_kb} KB, {server_ms} ms, {connection}, {strategy}, seed {seed}: lab {lab:.1}, \
         simulation {simulation:.1}, late p99 {late:.1?}{}",
        void.as_ref().map_or_else(String::new, |void| format!("; VOID: {void}")),
    );
    Ok(void.is_none().then_some(Growth { lab, simulation }))
}

/// The agent that the simulation draws for a site.
fn chosen(batch: &Batch<'_>, site: u64) -> Option<usize> {
    let candidates = batch.survey.candidates(usize::try_from(site).ok()?);
    agent_index(
        choose(batch.strategy, &Site::default(), candidates, spread(batch.first_task.wrapping_add(site)))?.agent,
    )
}

/// The growth in megabytes per minute, while `agents[site]` crawls each site.
async fn growth(world: &World, agents: &[usize], window: Duration) -> anyhow::Result<f64> {
    let crawlers = Crawlers::new(world)?;
    let mut running = Vec::with_capacity(agents.len());
    for (site, agent) in agents.iter().enumerate() {
        let mut command = crawlers.command(*agent, &world.site_name(site));
        running.push(command.stderr(Stdio::null()).spawn().context("run landfall-agent")?);
    }
    tokio::time::sleep(START).await;
    let began = Instant::now();
    tokio::time::sleep(window).await;
    for crawl in &mut running {
        let ended = crawl.try_wait().context("look at a crawl")?;
        anyhow::ensure!(ended.is_none(), "a crawl ended within the time: {ended:?}");
        crawl.kill().await.context("end a crawl")?;
    }
    let arrived = world.log.deliveries().into_iter().filter_map(|body| {
        Some(BodyArrival { at_s: body.until.checked_duration_since(began)?.as_secs_f64(), bytes: body.bytes })
    });
    Ok(slope(&curve(&arrived.collect::<Vec<_>>(), window.as_secs_f64())))
}
