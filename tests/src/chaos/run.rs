//! Runs `lab chaos`: starts the network and the cluster, surveys, injects the faults, prints the
//! judge's result, and stops everything.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::args::{ChaosArgs, Format};
use super::client::Client;
use super::crawl_under_faults::crawl_under_faults;
use super::inject::Injector;
use super::lease_times::LeaseTimes;
use super::prepare::{self, CAPACITY};
use super::record::Recorder;
use super::report;
use super::schedule::{self, FaultKind, FaultPlan};
use super::survey::survey;
use crate::cluster::process::interrupted;
use crate::cluster::{Cluster, ClusterDatabase, ClusterOptions};
use crate::world::World;
use crate::world::scenario::Layout;

/// The emulated network of `lab chaos`.
const LAYOUT: &str = include_str!("../../scenarios/chaos.toml");
/// Expected time between the ends of two successive crawls in the whole fleet, under faults. A
/// crawl takes 1.5 s, and 10 agents with 5 slots run 50 crawls at once, so a crawl ends every 30
/// ms. Another 15 ms allow for crawls that faults interrupt and that must be repeated.
const A_SITE: Duration = Duration::from_millis(45);
/// Minimum of the mean time between the starts of two successive faults. With a shorter mean time,
/// so many faults would be active at the same time that no agent could crawl.
const LEAST_INTERVAL: Duration = Duration::from_millis(400);
/// Number of machines that serve the sites. Sites on one machine are measured one after another, so
/// with fewer machines the measurements would outlast the faults. Sites on one machine share
/// measurements, so with more machines agents would measure more and crawl too little.
const MACHINES: usize = 250;
/// Number of site lists that the client submits during the faults.
const LISTS: usize = 50;

/// Runs `lab chaos`. The cluster is stopped even after a failure or an interrupt.
pub async fn chaos(args: ChaosArgs) -> anyhow::Result<()> {
    let times = if args.real_times { LeaseTimes::real() } else { LeaseTimes::SHORT };
    let quiet = args.format == Format::Json;
    let kinds = args.kinds(quiet)?;
    if !quiet {
        println!(
            "Landfall chaos: {} sites, {} faults, seed {}, {} schedulers; a session lives {:?} and {:?} of grace",
            args.sites, args.faults, args.seed, args.schedulers, times.life, times.grace
        );
    }
    let sites = usize::try_from(args.sites)?;
    let mut layout = Layout::parse(LAYOUT, "chaos.toml")?;
    layout.sites.per_machine = NonZeroUsize::new(sites.div_ceil(MACHINES));
    let world = World::start_on(args.grade(quiet), layout.scenario(None, Some(sites))?).await?;
    let options = ClusterOptions {
        scheduler: times.scheduler(),
        capacity: CAPACITY,
        logs: None,
        database: ClusterDatabase::Shared(args.schedulers.into()),
    };
    let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
    let mut cluster = Cluster::without_agents(world, &options).await?;
    let ran = tokio::select! {
        ran = run(&args, times, kinds, &mut cluster, &tasks, &shutdown) => ran,
        () = interrupted() => Err(anyhow::anyhow!("interrupted")),
    };
    shutdown.cancel();
    if ran.is_err() {
        cluster.keep_files();
    }
    let stopped = cluster.stop().await;
    tasks.close();
    ran?;
    stopped
}

/// Surveys the sites, injects the faults, and prints the judge's result. The schedulers must be
/// running.
async fn run(
    args: &ChaosArgs,
    times: LeaseTimes,
    kinds: Vec<FaultKind>,
    cluster: &mut Cluster,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let tools = prepare::tools(args, &kinds, cluster, tasks, shutdown).await?;
    cluster.start_agents().await?;
    cluster.await_mesh(Duration::from_secs(60)).await?;
    cluster.operate(&["landmarks", "elect", "--count", "3"]).await?;
    let mut recorder = Recorder::start(cluster, args.seed, times.lifetime()).await?;
    let faults = schedule::draw(&FaultPlan {
        seed: args.seed,
        faults: usize::try_from(args.faults)?,
        interval: args.interval.unwrap_or_else(|| LEAST_INTERVAL.max(A_SITE * args.sites / args.faults.max(1))),
        lifetime: times.lifetime(),
        longest: f64::from(args.longest) / 100.0,
        kinds,
    });
    let sites = usize::try_from(args.sites)?;
    let client = Client::new(cluster, LISTS, &args.request_interval)?;
    survey(cluster, &client, sites.div_ceil(2)).await?;
    let mut injector = Injector::new(faults, tools, cluster);
    let violations = crawl_under_faults(args, cluster, client, &mut injector, &mut recorder, tasks, shutdown).await?;
    let summary = report::Summary::of(&recorder.history, &violations);
    if let Some(file) = args.record.clone().or_else(|| (!violations.is_empty()).then(|| default_record_file(args.seed)))
    {
        let text = serde_json::to_string(&recorder.history).context("write the record")?;
        std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
        eprintln!("the record of the run is in {}", file.display());
    }
    match args.format {
        Format::Json => println!("{}", serde_json::to_string(&summary).context("write the summary")?),
        Format::Table => print!("{}", summary.table()),
    }
    for violation in violations.iter().take(20) {
        eprintln!("{}: {}", violation.rule.name(), violation.message);
    }
    ensure!(violations.is_empty(), "the judge found {} offences", violations.len());
    Ok(())
}

fn default_record_file(seed: u64) -> PathBuf {
    std::env::temp_dir().join(format!("landfall-chaos-{seed}-{}.json", std::process::id()))
}
