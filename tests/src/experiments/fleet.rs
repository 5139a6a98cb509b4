//! `lab fleet`: adds agents to a running crawl, two at a time, and measures throughput, load and
//! cost for each size of the fleet.
//!
//! The real binaries run in the rootless grade. An agent's slots and the request interval limit the
//! agent's requests per second, so that the machine is not the limit. Two agents join, and one
//! period passes in which their slots fill. The next period is measured. Then two more agents join.
//! When all agents have joined, further periods show whether the throughput stays the same.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;
use landfall_scheduler::model::Strategy;

use self::report::Report;
use self::sample::Sample;
use super::sweep::Format;
use crate::cluster::process::interrupted;
use crate::cluster::{Cluster, ClusterOptions};
use crate::world::World;
use crate::world::layout::{Layout, PAPER};
use crate::world::scenario::{Scenario, WebRules};

mod report;
mod sample;

/// Number of agents that join at the same time.
const JOINING: usize = 2;
/// Number of sites that an agent crawls at the same time.
const SLOTS: u32 = 4;
/// Number of sites. In a run with default arguments, 30 agents crawl fewer sites than this.
const SITES: usize = 5000;
const BATCH: &str = "fleet";
/// The scheduler's configuration. Agents measure each other more slowly than by default, because
/// they all share one machine.
const SCHEDULER: &str = "[measure]\nmesh_interval = '100ms'\n";

/// Arguments of `lab fleet`.
#[derive(Debug, Clone, Args)]
pub struct FleetArgs {
    /// Agents at the end
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u16).range(2..=30))]
    agents: u16,
    /// Seconds of a period: one passes after two agents joined, and the next one is measured
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    period: NonZeroU16,
    /// Further measured periods with all agents
    #[arg(long, value_name = "N", default_value_t = 18)]
    steady: u16,
    /// How agents are chosen
    #[arg(long, default_value = "random")]
    strategy: Strategy,
    /// Milliseconds between two requests of a crawl. By default an agent sends at most 16 requests a second, and 30 agents 480,
    /// which two processors can serve. With a shorter time the machine limits the throughput
    #[arg(long, value_name = "MS", default_value_t = 250, value_parser = clap::value_parser!(u16).range(10..=10_000))]
    request_interval: u16,
    /// Crawl nothing, to measure what an idle fleet costs
    #[arg(long)]
    idle: bool,
    /// Let the agents ask the name server at every connection
    #[arg(long)]
    no_dns_cache: bool,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

/// Runs the experiment and prints its results.
pub async fn fleet(args: FleetArgs) -> anyhow::Result<()> {
    let world = World::start(scenario(usize::from(args.agents))?).await?;
    let options = ClusterOptions { scheduler: SCHEDULER.to_owned(), capacity: SLOTS, logs: None, sharing: 0 };
    let mut cluster = Cluster::without_agents(world, &options).await?;
    let ran = tokio::select! {
        ran = run(&args, &mut cluster) => ran,
        () = interrupted() => Err(anyhow::anyhow!("interrupted")),
    };
    let stopped = cluster.stop().await;
    let report = ran?;
    stopped?;
    match args.format {
        Format::Table => print!("{}", report.text()),
        Format::Json => println!("{}", serde_json::to_string(&report.json()).context("write the report")?),
    }
    Ok(())
}

fn scenario(agents: usize) -> anyhow::Result<Scenario> {
    let mut scenario = Layout::parse(PAPER, "paper.toml")?.scenario(Some(agents), Some(SITES))?;
    // A crawl takes about five seconds, so that many crawls end in each period.
    scenario.web =
        WebRules { mean_pages: 18.0, pages_sigma: 0.3, max_pages: 40, slow_share: 0.0, ..WebRules::default() };
    Ok(scenario)
}

async fn run(args: &FleetArgs, cluster: &mut Cluster) -> anyhow::Result<Report> {
    cluster.enrol_all(SLOTS).await?;
    cluster.environment = metrics_addresses(usize::from(args.agents))?;
    if args.no_dns_cache {
        for agent in 0..usize::from(args.agents) {
            cluster.configure_agent(agent, |config| {
                config.insert("dns_cache".to_owned(), false.into());
                Ok(())
            })?;
        }
    }
    if !args.idle {
        let list = cluster.write_site_list()?;
        let list = list.to_str().context("the site list's path is text")?;
        let (strategy, interval) = (args.strategy.to_string(), format!("{}ms", args.request_interval));
        let mut submit = vec!["sites", "submit", list, "--batch", BATCH, "--strategy", &strategy];
        submit.extend(["--request-interval", &interval, "--max-depth", "8"]);
        cluster.operate(&submit).await?;
    }
    let period = Duration::from_secs(u64::from(args.period.get()));
    let mut windows = Vec::new();
    let mut agents = 0;
    while agents < usize::from(args.agents) {
        agents = (agents + JOINING).min(usize::from(args.agents));
        cluster.start_agents_to(agents).await?;
        tokio::time::sleep(period).await;
        windows.push(window(args, cluster, period).await?);
        eprintln!("{agents} agents");
    }
    let mut steady = Vec::new();
    for _ in 0..args.steady {
        steady.push(window(args, cluster, period).await?);
    }
    Report::of(cluster, &windows, &steady).await
}

/// Takes a sample at the start and at the end of a period. Fails if so few sites are left that an
/// agent may have had a free slot.
async fn window(args: &FleetArgs, cluster: &Cluster, period: Duration) -> anyhow::Result<[Sample; 2]> {
    let first = Sample::take(cluster).await?;
    tokio::time::sleep(period).await;
    let last = Sample::take(cluster).await?;
    let open = "select count(*) from tasks where state not in ('done', 'failed')";
    let open: i64 = sqlx::query_scalar(open).fetch_one(&cluster.pool).await.context("count the open sites")?;
    let slots = i64::from(SLOTS) * i64::from(args.agents);
    ensure!(
        args.idle || open >= slots,
        "the sites ran out: shorten --period or --steady, or lengthen --request-interval"
    );
    Ok([first, last])
}

/// A free address for every agent's metrics.
fn metrics_addresses(agents: usize) -> anyhow::Result<BTreeMap<usize, Vec<(String, String)>>> {
    let taken = (0..agents).map(|_| std::net::TcpListener::bind("127.0.0.1:0")).collect::<Result<Vec<_>, _>>();
    let taken = taken.context("find free ports for the agents' metrics")?;
    let addresses = taken.iter().enumerate().map(|(agent, listener)| {
        let address = listener.local_addr().context("find free ports for the agents' metrics")?.to_string();
        Ok((agent, vec![(sample::METRICS.to_owned(), address)]))
    });
    addresses.collect()
}
