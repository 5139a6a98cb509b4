//! Runs `lab demo`: defines its arguments, starts the network and the cluster, elects landmarks,
//! crawls, collects what the checks compare, writes the report, and stops everything.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use landfall_scheduler::simulate::Matrix;

use super::printed_output::{RunOutcome, Stages, Verdict, print_details, print_reports};
use super::report_charts::ReportInput;
use super::report_page;
use super::targets::{PeakMemory, targets};
use crate::cluster::process::interrupted;
use crate::cluster::{Cluster, ClusterDatabase, ClusterOptions};
use crate::evidence::batch_record::BatchRecord;
use crate::evidence::check::{self, Evidence, RunKind};
use crate::evidence::figures::Figures;
use crate::machine::CpuTime;
use crate::world::scenario::{Layout, PAPER, Scenario};
use crate::world::site_servers::Access;
use crate::world::too_busy;
use crate::world::{Grade, World};

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
        print_reports(cluster, BATCH).await?;
    }
    let input = check_input(cluster);
    let checks = check::all(&input.with(&record, cluster), RunKind::Calm);
    let figures = Figures::of(&record, cluster.world.scenario(), &cluster.site_names());
    let memory = PeakMemory::of(cluster);
    let targets = targets(args.matrix.is_some(), &figures, &memory);
    let busy = cluster.world.too_late().or_else(|| idle.and_then(too_busy));
    let page = report_page::page(&ReportInput {
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

/// Arguments of `lab demo`.
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Draw agents and sites from a matrix of measured round trips (CSV, gzip or plain,
    /// milliseconds)
    #[arg(long, value_name = "FILE", conflicts_with = "scenario")]
    pub(super) matrix: Option<PathBuf>,
    /// A layout other than the paper's (TOML)
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// How the network is emulated: rootless, or tun, which needs root
    #[arg(long, value_enum, default_value_t = Grade::Rootless)]
    pub(super) grade: Grade,
    /// The seed of the nodes drawn from a matrix, or of the sites of a layout [default: 1, or the
    /// layout's]
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,
    /// Number of agents [default: 30, or the layout's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=250))]
    pub(super) agents: Option<u16>,
    /// Number of sites [default: 203, or the layout's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=2000))]
    pub(super) sites: Option<u16>,
    /// How agents are chosen: random, gnp-top1, gnp-top3 or gnp-confirmed
    #[arg(long, default_value = "gnp-top3")]
    pub(super) strategy: landfall_scheduler::model::Strategy,
    /// Number of landmarks to elect
    #[arg(long, value_name = "N", default_value_t = 9)]
    pub(super) landmarks: u16,
    /// Dimensions of the map [default: min(8, landmarks - 1)]
    #[arg(long, value_name = "N")]
    dims: Option<u16>,
    /// Also print the operator's own reports, every check and every target
    #[arg(long)]
    verbose: bool,
    /// At the end, keep everything running until Ctrl-C, so that you can look at the dashboard
    #[arg(long)]
    keep: bool,
    /// Fail when a target is missed, or when this computer is too busy for its times to be trusted
    #[arg(long)]
    pub(super) strict: bool,
}

impl DemoArgs {
    fn validate(&self) -> anyhow::Result<()> {
        ensure!(self.landmarks >= 3, "--landmarks must be 3 or more, but is {}", self.landmarks);
        if let Some(dims) = self.dims {
            let most = self.landmarks - 1;
            ensure!(
                (1..=most).contains(&dims),
                "--dims {dims} asked of {} landmarks: they span 1 to {most}",
                self.landmarks
            );
        }
        Ok(())
    }

    fn scenario(&self) -> anyhow::Result<Scenario> {
        let (agents, sites) = (self.agents.map(usize::from), self.sites.map(usize::from));
        if let Some(file) = &self.matrix {
            let matrix = Matrix::read(file)?;
            let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
            return Scenario::from_matrix(
                &matrix,
                &name,
                self.seed.unwrap_or(1),
                agents.unwrap_or(30),
                sites.unwrap_or(203),
            );
        }
        let mut layout = match &self.scenario {
            Some(file) => Layout::read(file)?,
            None => Layout::parse(PAPER, "paper.toml")?,
        };
        layout.seed = self.seed.unwrap_or(layout.seed);
        layout.scenario(agents, sites)
    }
}

/// The name of the demo's batch.
const BATCH: &str = "demo";
/// Time between two requests of a crawl to a site. A time this short is acceptable only because the
/// lab owns the sites.
const REQUEST_INTERVAL: &str = "250ms";
/// Maximum number of links from the start page to a crawled page.
const MAX_DEPTH: u32 = 8;
/// Minimum number of agents for electing landmarks. In a smaller fleet, the demo elects no
/// landmarks.
const FLEET_WITH_LANDMARKS: usize = 10;
const MESH_PATIENCE: Duration = Duration::from_secs(120);
const PAIRS: &str = "select count(*) from mesh_measurements";
const ENDED: &str = "select count(*) from tasks where state in ('done', 'failed')";

/// Elects landmarks, submits the sites, and waits until the batch has ended.
async fn elect_and_crawl(args: &DemoArgs, cluster: &mut Cluster, stages: &mut Stages) -> anyhow::Result<()> {
    let pool = cluster.pool.clone();
    let (agents, sites) = (cluster.world.scenario().agents.len(), cluster.world.scenario().sites.len());
    if agents >= FLEET_WITH_LANDMARKS {
        let pairs = agents * (agents - 1);
        stages
            .follow(
                "round trips between agents measured",
                (pool.clone(), PAIRS, pairs),
                cluster.await_mesh(MESH_PATIENCE),
            )
            .await?;
        let count = args.landmarks.to_string();
        let dims = args.dims.map(|dims| dims.to_string());
        let mut elect = vec!["landmarks", "elect", "--count", &count];
        if let Some(dims) = &dims {
            elect.extend(["--dims", dims]);
        }
        let elected = cluster.operate(&elect).await?;
        stages.done(&format!("{count} of the agents elected as landmarks"));
        if args.verbose {
            print!("{elected}");
        }
    }
    let list = cluster.write_site_list()?;
    let mut submit = cluster.landfall();
    submit.args(["sites", "submit"]).arg(&list).args([
        "--batch",
        BATCH,
        "--watch",
        "--strategy",
        &args.strategy.to_string(),
    ]);
    submit.args(["--request-interval", REQUEST_INTERVAL, "--max-depth", &MAX_DEPTH.to_string()]);
    let crawling = async {
        let output = submit.output().await.context("run landfall sites submit")?;
        // Exit code 3 means that the crawls of some sites failed, which the checks judge later.
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            matches!(output.status.code(), Some(0 | 3)),
            "landfall sites submit ended with {}: {}",
            output.status,
            said.trim()
        );
        Ok(())
    };
    stages.follow(&format!("{sites} sites measured, located and crawled"), (pool, ENDED, sites), crawling).await
}

/// Minimum time between two probes of a site, which is the scheduler's default.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The input of the checks, without the database's record of the batch. `with` adds this record,
/// and returns an [`Evidence`].
struct CheckInput {
    pub(super) sites: Vec<String>,
    agents: Vec<String>,
    log: Vec<Access>,
}

fn check_input(cluster: &Cluster) -> CheckInput {
    CheckInput { sites: cluster.site_names(), agents: cluster.agent_names(), log: cluster.world.log.entries() }
}

impl CheckInput {
    fn with<'a>(&'a self, record: &'a BatchRecord, cluster: &'a Cluster) -> Evidence<'a> {
        Evidence {
            record,
            sites: &self.sites,
            agents: &self.agents,
            webs: &cluster.world.webs,
            log: &self.log,
            max_depth: MAX_DEPTH,
            probe_interval: cluster.world.probe_gap(PROBE_INTERVAL),
        }
    }
}
