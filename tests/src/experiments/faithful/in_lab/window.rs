//! Cells in the lab: all sites are crawled concurrently, and no crawl ends within the measured
//! time.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use landfall_scheduler::model::seed::spread;
use landfall_scheduler::strategy::{Site, choose};

use super::{Crawlers, MAX_PAGES, first, requests, scenario_at};
use crate::evidence::float;
use crate::experiments::faithful::network::Network;
use crate::experiments::faithful::settings::{Contender, Point, Settings};
use crate::experiments::faithful::{CellResult, batch, curve, slope};
use crate::experiments::sweep::batch::Batch;
use crate::experiments::sweep::crawls;
use crate::experiments::sweep::growth::BodyArrival;
use crate::experiments::sweep::measured::agent_index;
use crate::world::World;

/// Time for the crawls to start, before bytes are counted.
const START: Duration = Duration::from_secs(15);

/// Runs the published strategies for `minutes` with the first layout: at the centre with every
/// seed, and with the first seed at the points around the centre and at the point where random's
/// growth is about random's growth in the paper. Prints the growth beside that of the simulation.
pub(in crate::experiments::faithful) async fn cells(settings: &Settings, minutes: u16) -> anyhow::Result<()> {
    let settings = Settings { window_min: minutes.into(), ..settings.clone() };
    let (form, first_seed) = first(&settings)?;
    println!("growth over {minutes} minutes in MB a minute, layout {}", form.name);
    let others = settings.around_the_centre().into_iter().filter(|point| *point != settings.centre);
    let others: Vec<Point> = others.chain([settings.slowest_servers()]).collect();
    for &seed in &settings.seeds {
        let network = Network::new(&settings, form, seed)?;
        cell(&settings, &network, settings.centre, seed).await?;
        for &point in others.iter().filter(|_| seed == first_seed) {
            cell(&settings, &network, point, seed).await?;
        }
    }
    Ok(())
}

async fn cell(settings: &Settings, network: &Network, point: Point, seed: u64) -> anyhow::Result<()> {
    let window = Duration::from_secs(60 * u64::from(settings.window_min));
    let mut scenario = scenario_at(network, point);
    // The server delays each page, so no crawl reaches this number of pages.
    let pages = (window + 2 * START).as_millis() / u128::from(point.server_ms) + 1;
    anyhow::ensure!(pages < MAX_PAGES.into(), "--in-lab: crawls would end within {} minutes", settings.window_min);
    scenario.web.max_pages = usize::try_from(pages)?;
    scenario.web.mean_pages = float(scenario.web.max_pages);
    let requests = requests(&scenario);
    let Point { access_mbit, page_kb, server_ms, connection } = point;
    println!("{access_mbit} Mbit/s, {page_kb} KB, server {server_ms} ms, connection {connection:?}, seed {seed}");
    let mut randoms: Option<(f64, f64)> = None;
    for strategy in &settings.published {
        let batch = batch(settings, network, point, Contender::Published(*strategy), seed);
        let batch = Batch { scenario: &scenario, requests: &requests, ..batch };
        let agents: Option<Vec<usize>> = (0..).take(scenario.sites.len()).map(|site| chosen(&batch, site)).collect();
        let agents = agents.context("a site has no agent")?;
        let world = World::start(scenario.clone()).await?;
        let lab = growth(&world, &agents, window).await?;
        let (late, void) = (world.lateness().quantile(0.99), world.void());
        world.stop().await;
        let simulated = CellResult::of(&crawls::run(batch)?, &scenario, settings).whole;
        let random = *randoms.get_or_insert((lab, simulated));
        println!(
            "  {strategy:<10} lab {lab:7.1} ({:.3} of {})  simulation {simulated:7.1} ({:.3})  lab / simulation {:.3}  \
             late p99 {late:.1?}{}",
            lab / random.0,
            settings.published[0],
            simulated / random.1,
            lab / simulated,
            void.map_or_else(String::new, |void| format!("; VOID: {void}")),
        );
    }
    Ok(())
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
