//! `lab balance`: agents crawl a batch over access links with rates in the ratio 0.5 to 1 to 2. The
//! time of the batch is compared with a lower bound.
//!
//! The real binaries run in the rootless grade. An agent's crawls share its access link, whose rate
//! is the agent's rate. The scheduler does not know the rates, and all agents have the same number
//! of slots. First, all sites are measured while all agents are drained. Then one batch is crawled.
//! The time of the batch is from the first grant to the end of the last lease. The lower bound is
//! the maximum of three bounds: the total work divided by the total rate, the crawl time of the
//! site that takes longest, and the flow bound (see the module `bound`).

use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;

use self::bound::{Bounds, SiteWork};
use crate::cluster::{Cluster, ClusterOptions};
use crate::evidence::machine::CpuTime;
use crate::evidence::witness::{self, AssignedCrawl};
use crate::world::World;
use crate::world::layout::{Layout, PAPER};
use crate::world::scenario::{Scenario, WebRules};

pub mod bound;

/// Number of agents, taken from the paper's layout. Such a small fleet has no landmarks, so every
/// agent measures every site.
const AGENTS: usize = 9;
/// Multipliers of the rate of access links. Each multiplier applies to a third of the agents.
const SHAPES: [f64; 3] = [0.5, 1.0, 2.0];
/// The rate of an access link with multiplier 1, in bytes per second. The rate is so low that only
/// the link limits the speed of a crawl.
const RATE: f64 = 60_000.0;
/// Number of slots of each agent. With two slots, the link stays busy while one of the crawls waits
/// for a response.
const SLOTS: u32 = 2;
/// Maximum ratio of the batch's time to the lower bound.
const TARGET: f64 = 1.10;
const SURVEY: &str = "survey";
const BATCH: &str = "balance";
const PATIENCE: Duration = Duration::from_secs(600);
/// The scheduler's configuration. Measurements are fast, because they are not part of the
/// experiment.
const SCHEDULER: &str =
    "[measure]\nsite_samples = 2\nsite_least_samples = 2\nsite_interval = '200ms'\nmesh_interval = '100ms'\n";

/// Arguments of `lab balance`.
#[derive(Debug, Clone, Args)]
pub struct BalanceArgs {
    /// Runs, each with its own sites
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=100))]
    runs: u16,
    /// Draws the sites of the first run; later ones count on from it
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Sites of a run
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = clap::value_parser!(u16).range(20..=2000))]
    sites: u16,
    /// How agents are chosen: random, gnp-top1, gnp-top3 or gnp-confirmed
    #[arg(long, default_value = "gnp-top3")]
    strategy: landfall_scheduler::model::Strategy,
}

#[derive(Debug, Clone, Copy)]
struct RunResult {
    bounds: Bounds,
    took: f64,
    rebalanced: usize,
}

impl RunResult {
    fn ratio(&self) -> f64 {
        self.took / self.bounds.least()
    }
}

/// Runs the experiment and prints the results. A missed target is not an error.
pub async fn balance(args: BalanceArgs) -> anyhow::Result<()> {
    println!(
        "{AGENTS} agents of {SLOTS} slots, a third each at {SHAPES:?} of {:.0} kB/s, {} sites, {}",
        RATE / 1e3,
        args.sites,
        args.strategy
    );
    let mut ratios = Vec::new();
    for run in 0..args.runs {
        let seed = args.seed + u64::from(run);
        let idle_from = CpuTime::now();
        let ended = one(&args, seed).await.with_context(|| format!("run with seed {seed}"))?;
        let idle = CpuTime::now().zip(idle_from).map_or(0.0, |(now, from)| now.idle_since(from));
        let Bounds { total, longest, flow } = ended.bounds;
        println!(
            "seed {seed}: {:.1} s; total {total:.1} s, longest site {longest:.1} s, flow {flow:.1} s: {:.3} of the least; \
             {} sites moved; machine {:.0} % idle",
            ended.took,
            ended.ratio(),
            ended.rebalanced,
            idle * 100.0
        );
        ratios.push(ended.ratio());
    }
    ratios.sort_by(f64::total_cmp);
    let median = ratios.get(ratios.len() / 2).copied().context("at least one run")?;
    let verdict = if median <= TARGET { "met" } else { "MISSED" };
    println!(
        "median of {} runs: {median:.3} of the least possible time; target <= {TARGET:.2}: {verdict}",
        ratios.len()
    );
    Ok(())
}

fn scenario(seed: u64, sites: u16) -> anyhow::Result<Scenario> {
    let mut layout = Layout::parse(PAPER, "paper.toml")?;
    layout.seed = seed;
    let mut scenario = layout.scenario(Some(AGENTS), Some(usize::from(sites)))?;
    scenario.agent_bytes_per_s = RATE;
    scenario.shapes = (0..AGENTS).map(|agent| SHAPES[agent % SHAPES.len()]).collect();
    // With many sites of similar size, agents are idle only briefly at the end of the batch.
    scenario.web = WebRules {
        mean_pages: 5.0,
        pages_sigma: 0.5,
        max_pages: 15,
        mean_bytes: 16_384.0,
        bytes_sigma: 0.4,
        max_bytes: 40_000,
        broken_share: 0.0,
        slow_share: 0.0,
        ..WebRules::default()
    };
    Ok(scenario)
}

async fn one(args: &BalanceArgs, seed: u64) -> anyhow::Result<RunResult> {
    let world = World::start(scenario(seed, args.sites)?).await?;
    let options = ClusterOptions { scheduler: SCHEDULER.to_owned(), capacity: SLOTS, logs: None, sharing: 0 };
    let mut cluster = Cluster::start(world, &options).await?;
    let ran = crawl(args, &mut cluster).await;
    let stopped = cluster.stop().await;
    let ended = ran?;
    stopped?;
    Ok(ended)
}

async fn crawl(args: &BalanceArgs, cluster: &mut Cluster) -> anyhow::Result<RunResult> {
    let (list, names) = (cluster.write_site_list()?, cluster.agent_names());
    let list = list.to_str().context("the site list's path is text")?;
    for name in &names {
        cluster.operate(&["agents", "drain", name]).await?;
    }
    let sites = usize::from(args.sites);
    cluster.operate(&["sites", "submit", list, "--batch", SURVEY]).await?;
    let located = "select count(*) from tasks where state = 'located'";
    cluster.await_count("every site to be measured", located, sites, PATIENCE).await?;
    cluster.operate(&["batches", "cancel", SURVEY]).await?;
    for name in &names {
        cluster.operate(&["agents", "resume", name]).await?;
    }
    let strategy = args.strategy.to_string();
    let submit = ["sites", "submit", list, "--batch", BATCH, "--strategy", &strategy, "--request-interval", "10ms"];
    cluster.operate(&submit).await?;
    let ended = "select count(*) from tasks where state in ('done', 'failed')";
    cluster.await_count("every site to be crawled", ended, sites, PATIENCE).await?;

    let crawled = witness::crawled(&cluster.pool, BATCH).await?;
    ensure!(crawled.iter().all(|one| one.kind == "complete"), "not every crawl is complete");
    let took = witness::span(&cluster.pool, BATCH).await?;
    let scenario = cluster.world.scenario();
    let rates: Vec<f64> = (0..AGENTS).map(|agent| scenario.bytes_per_s(agent)).collect();
    let work: Vec<SiteWork> = crawled.iter().map(|one| work(one, &names)).collect::<anyhow::Result<_>>()?;
    print_agents(&names, &rates, &crawled, took);
    let rebalanced = crawled.iter().filter(|one| one.assignments > 1).count();
    Ok(RunResult { bounds: Bounds::of(&work, &rates)?, took, rebalanced })
}

fn work(crawled: &AssignedCrawl, names: &[String]) -> anyhow::Result<SiteWork> {
    let index =
        |name: &String| names.iter().position(|known| known == name).with_context(|| format!("no agent {name}"));
    let candidates = crawled.candidates.iter().map(index).collect::<anyhow::Result<_>>()?;
    Ok(SiteWork { bytes: u64::try_from(crawled.bytes).context("bytes")?, candidates })
}

/// Prints the used fraction of the capacity of each agent's access link.
fn print_agents(names: &[String], rates: &[f64], crawled: &[AssignedCrawl], took: f64) {
    for (name, rate) in names.iter().zip(rates) {
        let own: Vec<&AssignedCrawl> = crawled.iter().filter(|one| one.crawler == *name).collect();
        let bytes: i64 = own.iter().map(|one| one.bytes).sum();
        let share = f64::from(i32::try_from(bytes).unwrap_or(i32::MAX)) / (rate * took);
        let last = own.iter().map(|one| one.ended_s).fold(0.0, f64::max);
        println!(
            "  {name:<22} {:>4.1} {:>4} sites {:>6.1} % of its link, ended at {last:.1} s",
            rate / RATE,
            own.len(),
            share * 100.0
        );
    }
}
