//! The paper's Figure 3 in the lab.
//!
//! Every agent crawls every chosen site once. Each site is crawled by one agent at a time, and each
//! agent crawls one site at a time. Different agents share no emulated link, so their crawls of
//! different sites run at the same time.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use landfall_scheduler::model::Strategy;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use tokio::process::Command;

use super::{Crawlers, first, requests, scenario_at};
use crate::evidence::float;
use crate::experiments::faithful::alone::{self, SiteRates, with_nearest};
use crate::experiments::faithful::batch;
use crate::experiments::faithful::network::Network;
use crate::experiments::faithful::settings::{Connection, Contender, LayoutForm, Point, Settings};
use crate::experiments::sweep::batch::Batch;
use crate::experiments::sweep::crawls;
use crate::world::World;
use crate::world::scenario::Scenario;

/// Crawls `sites` sites of the first layout, and prints the rates beside those of the simulation.
pub(in crate::experiments::faithful) async fn figure3(settings: &Settings, sites: usize) -> anyhow::Result<()> {
    let (form, seed) = first(settings)?;
    let network = Network::new(settings, form, seed)?;
    for point in [settings.centre, settings.where_distance_counts()] {
        print!(
            "{}",
            compare(settings, &network, (form, seed), Point { connection: Connection::Kept, ..point }, sites).await?
        );
    }
    Ok(())
}

/// Crawls the sites in the network of a point, and describes their rates.
async fn compare(
    settings: &Settings,
    network: &Network,
    (form, seed): (&LayoutForm, u64),
    point: Point,
    sites: usize,
) -> anyhow::Result<String> {
    let scenario = scenario_at(network, point);
    let (agents, all) = (scenario.agents.len(), scenario.sites.len());
    ensure!(sites <= agents.min(all), "--alone: at most {} sites, one for each agent", agents.min(all));
    let chosen: Vec<usize> = (0..sites).map(|number| number * all / sites).collect();
    let simulated = simulated(settings, network, &scenario, (point, seed), &chosen);
    let world = World::start(scenario).await?;
    let measured = crawl_all(&world, &chosen).await?;
    let (late, void) = (world.lateness().quantile(0.99), world.too_late());
    world.stop().await;
    let pairs = || measured.iter().flatten().zip(simulated.iter().flatten());
    let agreement = alone::quantiles(pairs().map(|(lab, simulated)| lab / simulated).collect());
    let rates = |name: &str, rates: &[Vec<f64>]| {
        let of = |(site, rates): (&usize, &Vec<f64>)| with_nearest(network, *site, seed, rates.clone());
        (format!("{}, {name}", form.name), point, SiteRates { sites: chosen.iter().zip(rates).map(of).collect() })
    };
    let both = alone::summary(vec![rates("lab", &measured), rates("simulation", &simulated)]);
    let at = |name: &str| agreement.get(name).copied().unwrap_or(f64::NAN);
    Ok(format!(
        "{}  rates of the lab divided by those of the simulation, {} crawls: p5 {:.3}  p50 {:.3}  p95 {:.3}\n  \
         lateness of the emulated network: p99 {late:.1?}{}\n",
        alone::text(&both),
        pairs().count(),
        at("p5"),
        at("p50"),
        at("p95"),
        void.map_or_else(String::new, |void| format!("; VOID: {void}")),
    ))
}

/// For each chosen site, the simulated rates by all agents in megabytes per minute.
fn simulated(
    settings: &Settings,
    network: &Network,
    scenario: &Scenario,
    (point, seed): (Point, u64),
    chosen: &[usize],
) -> Vec<Vec<f64>> {
    let requests = requests(scenario);
    let batch = batch(settings, network, point, Contender::Published(Strategy::GNP_TOP3), seed);
    let batch = Batch { scenario, requests: &requests, ..batch };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut rate = |agent: usize, site: usize| {
        let bytes = requests[site].iter().map(|asked| asked.bytes).sum();
        per_minute(bytes, crawls::alone(&batch, agent, site, &mut rng))
    };
    chosen.iter().map(|site| (0..scenario.agents.len()).map(|agent| rate(agent, *site)).collect()).collect()
}

/// For each chosen site, the measured rates by all agents in megabytes per minute.
async fn crawl_all(world: &World, chosen: &[usize]) -> anyhow::Result<Vec<Vec<f64>>> {
    let (crawlers, agents) = (Crawlers::new(world)?, world.scenario().agents.len());
    let mut rates = vec![vec![f64::NAN; agents]; chosen.len()];
    for round in 0..agents {
        let began = Instant::now();
        let crawls = chosen.iter().enumerate().map(|(number, site)| {
            let agent = (number + round) % agents;
            crawl(crawlers.command(agent, &world.site_name(*site)))
        });
        try_join_all(crawls).await?;
        let (entries, deliveries) = (world.log.entries(), world.log.deliveries());
        for (number, site) in chosen.iter().enumerate() {
            let agent = (number + round) % agents;
            let requests = || entries.iter().filter(|entry| entry.site == *site && entry.at >= began);
            let first = requests().map(|entry| entry.at).min().context("a site got no request")?;
            let last = deliveries.iter().filter(|one| one.site == *site && one.from >= began).map(|one| one.until);
            let bytes = requests().map(|entry| entry.bytes).sum();
            ensure!(requests().all(|entry| entry.agent == Some(agent)), "a site was crawled by two agents at once");
            rates[number][agent] = per_minute(bytes, last.max().context("a site sent nothing")? - first);
        }
        eprintln!("round {} of {agents}: {:.1} s", round + 1, began.elapsed().as_secs_f64());
    }
    Ok(rates)
}

async fn crawl(mut command: Command) -> anyhow::Result<()> {
    let output = command.stderr(Stdio::piped()).output().await.context("run landfall-agent")?;
    ensure!(output.status.success(), "landfall-agent crawl: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn per_minute(bytes: usize, took: Duration) -> f64 {
    float(bytes) / 1e6 / (took.as_secs_f64() / 60.0)
}
