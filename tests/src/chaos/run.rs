//! Runs `lab chaos`: starts the network and the cluster, surveys, injects the faults while the
//! client submits further lists of sites, waits until all tasks have ended or no more of them end,
//! prints the judge's result, and stops everything. The rules of safety are checked every few
//! seconds.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::args::{ChaosArgs, Format, LeaseTimes};
use super::client::{AcknowledgedSites, Client, survey};
use super::fault_tools::{self, CAPACITY};
use super::inject::Injector;
use super::judge::{self, Violation};
use super::recorder::Recorder;
use super::report_and_rejudge;
use super::schedule::{self, FaultKind, FaultPlan};
use crate::cluster::postgres::ServerHandles;
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
    let handles = ServerHandles {
        clock: kinds.contains(&FaultKind::PostgresClock),
        disk: kinds.contains(&FaultKind::PostgresDiskFull),
    };
    let options = ClusterOptions {
        scheduler: times.scheduler(),
        capacity: CAPACITY,
        logs: None,
        database: ClusterDatabase::Shared(args.schedulers.into(), handles),
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
    let tools = fault_tools::tools(args, &kinds, cluster, tasks, shutdown).await?;
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
    let summary = report_and_rejudge::Summary::of(&recorder.history, &violations);
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

/// Time between two checks of the safety rules during the run.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// Injects faults while the client submits lists of sites. After the last fault, the function waits
/// until all tasks have ended.
async fn crawl_under_faults(
    args: &ChaosArgs,
    cluster: &mut Cluster,
    client: Client,
    injector: &mut Injector,
    recorder: &mut Recorder,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> anyhow::Result<Vec<Violation>> {
    let (lists, acknowledged) = (client.lists(), client.acknowledged());
    let next = Arc::new(Notify::new());
    tasks.spawn(shutdown.clone().run_until_cancelled_owned(client.submit_rest(Arc::clone(&next))));
    let mut next_check = Instant::now() + CHECK_EVERY;
    let mut shown = 0;
    while !injector.is_over() || acknowledged.lists() < lists {
        let wake = injector.step(cluster).await?;
        // Submit lists in proportion to the number of faults that have begun, so that there is
        // always work. After the last fault, submit all remaining lists.
        let wanted = if injector.is_over() {
            lists
        } else {
            injector.begun() * lists / usize::try_from(args.faults)?.max(1) + 1
        };
        if acknowledged.lists() < wanted.min(lists) {
            next.notify_one();
        }
        if Instant::now() >= next_check && !injector.database_suffers(cluster) {
            next_check = Instant::now() + CHECK_EVERY;
            let violations = check_safety(cluster, injector, recorder, &acknowledged).await;
            if !violations.is_empty() {
                injector.cut_short();
                recorder.close(&injector.done, Instant::now());
                return Ok(violations);
            }
            if args.format == Format::Table && injector.begun() >= shown + 50 {
                shown = injector.begun();
                println!("  {shown} faults, {} sites submitted, {} done", acknowledged.sites().len(), ended(recorder));
            }
        }
        tokio::time::sleep_until(wake.into()).await;
    }
    injector.settle().await?;
    let healed = Instant::now();
    await_end(args, cluster, injector, recorder, &acknowledged, healed).await
}

/// Reads new events, and checks the safety rules. If reading fails, the result is empty, because a
/// fault may have stopped the database.
async fn check_safety(
    cluster: &Cluster,
    injector: &Injector,
    recorder: &mut Recorder,
    acknowledged: &AcknowledgedSites,
) -> Vec<Violation> {
    match recorder.advance(cluster, injector.proxies(), &acknowledged.sites()).await {
        Ok(()) => judge::safety(&recorder.history),
        Err(error) => {
            tracing::debug!(error = format!("{error:#}"), "the record waits for the database");
            Vec::new()
        }
    }
}

/// After the faults, the run fails if no task ends within this time plus ten session lifetimes.
const LEAST_PATIENCE: Duration = Duration::from_secs(60);
/// How often to check whether all tasks have ended. The interval is long, because each check reads
/// ten thousand tasks.
const REST: Duration = Duration::from_secs(1);

/// Waits until all tasks have ended, or until no task has ended for `patience`, and then judges the
/// run.
async fn await_end(
    args: &ChaosArgs,
    cluster: &Cluster,
    injector: &Injector,
    recorder: &mut Recorder,
    acknowledged: &AcknowledgedSites,
    healed: Instant,
) -> anyhow::Result<Vec<Violation>> {
    let patience = LEAST_PATIENCE + 10 * Duration::from_micros(recorder.history.lifetime_us.unsigned_abs());
    let (mut last, mut moved) = (0, Instant::now());
    loop {
        let read = recorder.advance(cluster, injector.proxies(), &acknowledged.sites()).await;
        let done = ended(recorder);
        if done > last {
            (last, moved) = (done, Instant::now());
        }
        let all = read.is_ok() && done == recorder.history.tasks.len() && done >= usize::try_from(args.sites)?;
        if all || moved.elapsed() > patience {
            read.context("read the end of the run")?;
            recorder.close(&injector.done, healed);
            return Ok(judge::judge(&recorder.history));
        }
        tokio::time::sleep(REST).await;
    }
}

/// Number of tasks that have ended.
fn ended(recorder: &Recorder) -> usize {
    let tasks = recorder.history.tasks.iter();
    tasks.filter(|task| matches!(task.state.as_str(), "done" | "failed" | "cancelled")).count()
}
