//! Runs `lab demo`: starts the network and the cluster, crawls, checks, writes the report, and
//! stops everything.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use super::args::DemoArgs;
use super::check_input::check_input;
use super::elect_and_crawl::{BATCH, elect_and_crawl};
use super::printed_result::{RunOutcome, Verdict};
use super::progress::Stages;
use super::report;
use super::targets::{PeakMemory, targets};
use super::verbose_output::{print_details, print_reports};
use crate::cluster::process::interrupted;
use crate::cluster::{Cluster, ClusterDatabase, ClusterOptions};
use crate::evidence::check::{self, RunKind};
use crate::evidence::figures::Figures;
use crate::machine::CpuTime;
use crate::world::World;
use crate::world::emulated_network::too_busy;

/// Number of slots of each agent.
const CAPACITY: u32 = 32;
/// The scheduler's configuration. Agents measure each other less often than by default, because
/// they all share one machine. The dashboard can be read without signing in.
const SCHEDULER: &str = "[measure]\nmesh_interval = '100ms'\n[dashboard]\npublic = true\n";

/// Runs the demo. The emulated network is removed even after a failure or an interrupt.
pub async fn demo(args: DemoArgs) -> anyhow::Result<()> {
    args.validate()?;
    let scenario = args.scenario()?;
    let output = output_folder()?;
    let (agents, sites) = (scenario.agents.len(), scenario.sites.len());
    println!(
        "Landfall demo: {agents} agents crawl {sites} sites, strategy {}, in the emulated network '{}' (seed {})",
        args.strategy, scenario.name, scenario.seed
    );
    let mut stages = Stages::begin();
    let world = World::start_on(args.grade, scenario).await?;
    stages.done("emulated network and its sites started");
    let options = ClusterOptions {
        scheduler: SCHEDULER.to_owned(),
        capacity: CAPACITY,
        logs: Some(output.join("logs")),
        database: ClusterDatabase::Private,
    };
    let mut cluster = tokio::select! {
        started = Cluster::start(world, &options) => started?,
        () = interrupted() => bail!("interrupted"),
    };
    stages.done(&format!("scheduler, Postgres and {agents} agents started"));
    let ran = tokio::select! {
        ran = run(&args, &mut cluster, &mut stages, &output) => ran,
        () = interrupted() => Err(anyhow::anyhow!("interrupted")),
    };
    if let Ok(verdict) = &ran {
        verdict.print(&output);
        if args.keep {
            keep(&cluster).await;
        }
    }
    let stopped = cluster.stop().await;
    let verdict = ran?;
    stopped?;
    ensure!(verdict.broken == 0, "{} checks do not hold: see above", verdict.broken);
    ensure!(!args.strict || verdict.strict, "--strict: a target was missed, or the times cannot be trusted: see above");
    Ok(())
}

/// Waits for Ctrl-C, so that the user can look at the dashboard.
async fn keep(cluster: &Cluster) {
    let scheduler = &cluster.schedulers[0];
    println!("Dashboard: http://{}", scheduler.address());
    println!("        to act, sign in with the token in {}", scheduler.data_dir().join("operator-token").display());
    println!("        commands: {} --data-dir {} status", cluster.binary().display(), scheduler.data_dir().display());
    println!("        Ctrl-C stops everything");
    interrupted().await;
}

/// Crawls, checks and reports, on a cluster that is already running.
async fn run(args: &DemoArgs, cluster: &mut Cluster, stages: &mut Stages, output: &Path) -> anyhow::Result<Verdict> {
    let idle_from = CpuTime::now();
    elect_and_crawl(args, cluster, stages).await?;
    let idle = CpuTime::now().zip(idle_from).map(|(now, from)| now.idle_since(from));
    let record = cluster.batch_record(BATCH).await?;
    write_assignments(cluster, output).await?;
    if args.verbose {
        print_reports(cluster).await?;
    }
    let input = check_input(cluster);
    let checks = check::all(&input.with(&record, cluster), RunKind::Calm);
    let figures = Figures::of(&record, cluster.world.scenario(), &cluster.site_names());
    let memory = PeakMemory::of(cluster);
    let targets = targets(args.matrix.is_some(), &figures, &memory);
    let busy = cluster.world.too_late().or_else(|| idle.and_then(too_busy));
    let page = report::page(&report::ReportInput {
        scenario: cluster.world.scenario(),
        record: &record,
        figures: &figures,
        targets: &targets,
        checks: &checks,
        sites: &input.sites,
        strategy: args.strategy,
        took: stages.took(),
        busy: busy.as_deref(),
    });
    let file = output.join("report.html");
    std::fs::write(&file, page).with_context(|| format!("write {}", file.display()))?;
    stages.done("database and web servers' logs checked");
    if args.verbose {
        print_details(&checks, &targets, cluster, idle);
    }
    let sites = input.sites.len();
    Ok(Verdict::of(&RunOutcome {
        sites,
        checks: &checks,
        targets: &targets,
        figures: &figures,
        memory,
        busy: busy.as_deref(),
    }))
}

/// Writes all assignments to a file.
async fn write_assignments(cluster: &Cluster, output: &Path) -> anyhow::Result<()> {
    let csv = cluster.operate(&["report", "assignments", "--batch", BATCH, "--format", "csv"]).await?;
    let file = output.join("assignments.csv");
    std::fs::write(&file, csv).with_context(|| format!("write {}", file.display()))
}

/// Creates or empties the folder `target/demo` for the demo's results, and returns its path.
fn output_folder() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe().context("find the lab's own executable")?;
    let target = own.ancestors().nth(2).context("find the target directory")?;
    let folder = target.join("demo");
    // The logs of earlier runs are removed, because processes append to their logs.
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("clear {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    Ok(folder)
}
