//! Starts and stops a cluster, its schedulers with their database and then its agents, and holds
//! the world, processes, database and files of the running cluster. This module also runs
//! operator's commands, and waits until the database counts enough sessions, measurements or tasks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::unistd::Pid;
use sqlx::PgPool;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::Mutex;

use super::postgres::{self, DatabaseAction, ServerDatabase, ServerHandles, SharedPostgres};
use super::process::{Process, until};
use super::replication;
use super::scheduler::{SchedulerNode, SchedulerOptions};
use crate::evidence::batch_record::{self, BatchRecord};
use crate::world::World;

#[derive(Debug)]
pub struct Cluster {
    pub world: World,
    /// Connections for the lab's own queries.
    pub pool: PgPool,
    pub schedulers: Vec<SchedulerNode>,
    /// The Postgres that the lab started for the schedulers, if it started one.
    pub postgres: Option<Arc<Mutex<SharedPostgres>>>,
    /// The standby of this Postgres, if it has one.
    pub(super) standby: Option<SharedPostgres>,
    /// The database on a server that was already running, if the schedulers use one.
    pub(super) database: Option<ServerDatabase>,
    pub(super) agents: Vec<Process>,
    /// Extra environment variables of agents. The key is the agent's index.
    pub environment: BTreeMap<usize, Vec<(String, String)>>,
    pub(super) binaries: Binaries,
    pub(super) logs: PathBuf,
    pub(super) directory: TempDir,
}

impl Cluster {
    pub async fn batch_record(&self, batch: &str) -> anyhow::Result<BatchRecord> {
        batch_record::batch_record(&self.pool, batch).await
    }

    pub fn agent_names(&self) -> Vec<String> {
        self.world.scenario().agents.iter().map(|agent| agent.name.clone()).collect()
    }

    pub fn site_names(&self) -> Vec<String> {
        (0..self.world.scenario().sites.len()).map(|site| self.world.site_name(site)).collect()
    }

    /// Keeps the temporary directory after the cluster is dropped, and prints the directory's path.
    pub fn keep_files(&mut self) {
        self.directory.disable_cleanup(true);
        eprintln!("the cluster's files are kept in {}", self.directory.path().display());
    }

    pub fn folder(&self) -> &Path {
        self.directory.path()
    }

    pub fn binary(&self) -> PathBuf {
        self.binaries.landfall.clone()
    }

    pub fn pids(&self) -> (Option<Pid>, Vec<Pid>) {
        (self.schedulers[0].pid(), self.agents.iter().filter_map(Process::pid).collect())
    }

    pub fn postgres_cluster(&self) -> PathBuf {
        self.schedulers[0].data_dir().join("postgres")
    }

    pub fn logs(&self) -> &Path {
        &self.logs
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.directory.disable_cleanup(true);
            eprintln!("the cluster's files are kept in {}", self.directory.path().display());
        }
    }
}

/// A scheduler's configuration for tests. With its short intervals, the scheduler detects dead
/// agents and measures sites within seconds.
pub const HURRIED: &str = "
[lease]
heartbeat_interval = '500ms'
life = '3s'
grace = '500ms'
[measure]
site_interval = '200ms'
";

#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The schedulers' configuration, as TOML.
    pub scheduler: String,
    /// Number of slots of each agent.
    pub capacity: u32,
    /// The folder of the logs; by default, a folder in the temporary directory.
    pub logs: Option<PathBuf>,
    pub database: ClusterDatabase,
}

/// Where the schedulers store their data.
#[derive(Debug, Clone)]
pub enum ClusterDatabase {
    /// One scheduler, with its private Postgres.
    Private,
    /// This number of schedulers, with a Postgres that the lab starts with these handles.
    Shared(usize, ServerHandles),
    /// One scheduler, with a Postgres and its standby that the lab starts. The scheduler's URL names
    /// the standby first.
    Replicated,
    /// One scheduler, with a new database on the server at this URL.
    OnServer(String),
}

/// The folders of the servers that the lab starts.
const SERVERS: [&str; 2] = ["database", "database-2"];

impl Cluster {
    /// Starts the schedulers, enrols and starts all agents, and waits until the agents are
    /// connected.
    pub async fn start(world: World, options: &ClusterOptions) -> anyhow::Result<Self> {
        let mut cluster = Self::without_agents(world, options).await?;
        cluster.enrol_all(options.capacity).await?;
        cluster.start_agents().await?;
        Ok(cluster)
    }

    /// Starts only the schedulers.
    pub async fn without_agents(world: World, options: &ClusterOptions) -> anyhow::Result<Self> {
        let binaries = Binaries::find()?;
        let directory = postgres::accessible_folder("landfall-lab-")?;
        let logs = options.logs.clone().unwrap_or_else(|| directory.path().join("logs"));
        std::fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
        let config = directory.path().join("landfall.toml");
        std::fs::write(&config, &options.scheduler).context("write the schedulers' configuration")?;
        let (mut count, mut postgres, mut standby, mut database) = (1, None, None, None);
        match &options.database {
            ClusterDatabase::Private => {}
            ClusterDatabase::Shared(schedulers, handles) => {
                count = *schedulers;
                postgres = Some(SharedPostgres::start_with(&directory.path().join(SERVERS[0]), *handles).await?);
            }
            ClusterDatabase::Replicated => {
                let primary = SharedPostgres::start(&directory.path().join(SERVERS[0])).await?;
                standby = Some(primary.standby(&directory.path().join(SERVERS[1])).await?);
                postgres = Some(primary);
            }
            ClusterDatabase::OnServer(url) => database = Some(ServerDatabase::create(url).await?),
        }
        let url = match (&database, &postgres, &standby) {
            (Some(database), ..) => Some(database.url()?),
            (None, Some(primary), Some(standby)) => Some(replication::url_of_both(standby, primary)),
            (None, Some(postgres), None) => Some(postgres.url().to_owned()),
            (None, None, _) => None,
        };
        let mut schedulers: Vec<SchedulerNode> = Vec::new();
        for number in 0..count {
            let name = if number == 0 { "scheduler".to_owned() } else { format!("scheduler-{}", number + 1) };
            let started = SchedulerOptions {
                binary: binaries.landfall.clone(),
                data_dir: directory.path().join(&name),
                config: config.clone(),
                database_url: url.clone(),
                logs: logs.clone(),
            };
            if let Some(first) = schedulers.first() {
                first.introduce(&started.data_dir)?;
            }
            let scheduler = SchedulerNode::start(&name, started).await?;
            world.forward(scheduler.address().port())?;
            schedulers.push(scheduler);
        }
        let pool = match &database {
            Some(database) => batch_record::connect(database.options()).await?,
            None => {
                let folder = postgres.as_ref().map_or(schedulers[0].data_dir(), SharedPostgres::directory);
                batch_record::connect(postgres::private_options(folder)).await?
            }
        };
        let postgres = postgres.map(|postgres| Arc::new(Mutex::new(postgres)));
        Ok(Self {
            world,
            pool,
            schedulers,
            postgres,
            standby,
            database,
            agents: Vec::new(),
            environment: BTreeMap::new(),
            binaries,
            logs,
            directory,
        })
    }
}

/// Time limit for a process to end after SIGTERM. The limit is longer than the time that an agent
/// may take to return its leases.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

impl Cluster {
    /// Stops the agents, the schedulers and the emulated network, in this order. Fails if a process
    /// did not end in time and had to be killed.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.halt().await
    }

    /// Like `stop`, but keeps the files.
    pub(crate) async fn halt(&mut self) -> anyhow::Result<()> {
        self.pool.close().await;
        self.agents.iter().for_each(Process::terminate);
        let mut late = Vec::new();
        for process in &mut self.agents {
            if process.wait(STOP_PATIENCE).await?.is_none() {
                late.push(process.name().to_owned());
            }
        }
        for scheduler in &mut self.schedulers {
            let process = scheduler.process();
            process.terminate();
            if process.wait(STOP_PATIENCE).await?.is_none() {
                late.push(process.name().to_owned());
            }
        }
        if let Some(mut standby) = self.standby.take() {
            standby.stop().await?;
        }
        if let Some(postgres) = self.postgres.take() {
            postgres.lock().await.stop().await?;
        }
        if let Some(database) = self.database.take() {
            database.remove().await?;
        }
        self.world.stop().await;
        ensure!(late.is_empty(), "did not end within {} s of SIGTERM: {}", STOP_PATIENCE.as_secs(), late.join(", "));
        self.schedulers.iter().try_for_each(|scheduler| no_shared_transaction(scheduler.log()))
    }
}

/// What Postgres and the scheduler log if a caller got a connection inside another caller's
/// transaction.
const SHARED_TRANSACTION: [&str; 2] = ["already a transaction in progress", "came back inside a transaction"];

/// Fails if two callers shared a transaction, because acknowledged changes may then be lost.
fn no_shared_transaction(log: &Path) -> anyhow::Result<()> {
    let text = std::fs::read(log).with_context(|| format!("read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    match text.lines().find(|line| SHARED_TRANSACTION.iter().any(|sign| line.contains(sign))) {
        Some(line) => bail!("two callers shared a transaction ({}): {line}", log.display()),
        None => Ok(()),
    }
}

impl Cluster {
    /// Executes an action on the Postgres that the lab started.
    pub async fn apply(&self, action: DatabaseAction) -> anyhow::Result<()> {
        let postgres = self.postgres.as_ref().context("the lab started no Postgres")?;
        postgres.lock().await.apply(action).await
    }

    /// Holds back from the standby what the primary commits from now on. Unless a new history begins
    /// at its promotion, the standby then gives out the same numbers for other tasks and sites.
    pub async fn hold_back(&self) -> anyhow::Result<()> {
        let primary = self.postgres.as_ref().context("there is no primary")?.lock().await;
        primary.catch_up().await?;
        primary.hold_back().await?;
        primary.repeat_numbers(self.standby.as_ref().context("there is no standby")?).await
    }

    /// Makes the standby the primary, and reads from it.
    pub async fn promote_standby(&mut self) -> anyhow::Result<()> {
        let standby = self.standby.take().context("there is no standby")?;
        standby.promote().await?;
        self.pool = batch_record::connect(postgres::private_options(standby.directory())).await?;
        *self.postgres.as_ref().context("there is no primary")?.lock().await = standby;
        Ok(())
    }

    /// Starts a standby in the place of the former primary, which must not run any more.
    pub async fn add_standby(&mut self) -> anyhow::Result<()> {
        let primary = self.postgres.as_ref().context("there is no primary")?.lock().await;
        let places = SERVERS.map(|name| self.directory.path().join(name));
        let free = places.iter().find(|place| *place != primary.directory()).context("both places are taken")?;
        self.standby = Some(primary.standby(free).await?);
        Ok(())
    }
}

impl Cluster {
    /// An operator's command for the first scheduler, without arguments.
    pub fn landfall(&self) -> Command {
        self.landfall_at(0)
    }

    /// A command, still without arguments, for the scheduler with this index.
    pub fn landfall_at(&self, scheduler: usize) -> Command {
        let mut command = Command::new(&self.binaries.landfall);
        command.arg("--data-dir").arg(self.schedulers[scheduler].data_dir()).kill_on_drop(true);
        command
    }

    /// Runs an operator's command and returns its output.
    pub async fn operate(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let said = || format!("landfall {}", arguments.join(" "));
        let output = self.landfall().args(arguments).output().await.with_context(said)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}\n{}", said(), errors.trim(), self.schedulers[0].tail());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub fn write_site_list(&self) -> anyhow::Result<PathBuf> {
        let path = self.directory.path().join("sites.txt");
        std::fs::write(&path, self.world.site_list()).context("write the site list")?;
        Ok(path)
    }
}

/// Time limit for agents to connect.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(60);

impl Cluster {
    /// Waits until `count` agents have an active session.
    pub async fn await_connected(&mut self, count: usize) -> anyhow::Result<()> {
        let query = "select count(*) from sessions where state = 'active'";
        self.await_count(&format!("{count} agents to connect"), query, count, CONNECT_PATIENCE).await
    }

    /// Waits until every agent has measured every other agent.
    pub async fn await_mesh(&mut self, patience: Duration) -> anyhow::Result<()> {
        let agents = self.agents.len();
        let pairs = agents * agents.saturating_sub(1);
        let query = "select count(*) from mesh_measurements";
        self.await_count(&format!("{pairs} measurements between agents"), query, pairs, patience).await
    }

    /// Waits until a query returns at least `wanted`. Fails after `patience`, or as soon as a
    /// process has ended.
    pub async fn await_count(
        &mut self,
        awaited: &str,
        query: &'static str,
        wanted: usize,
        patience: Duration,
    ) -> anyhow::Result<()> {
        let wanted = i64::try_from(wanted).context("count")?;
        let (pool, schedulers, agents) = (self.pool.clone(), &mut self.schedulers, &mut self.agents);
        let mut seen = 0;
        let reached = until(awaited, patience, async || {
            schedulers.iter_mut().try_for_each(|scheduler| scheduler.process().ensure_running())?;
            agents.iter_mut().filter(|agent| agent.pid().is_some()).try_for_each(Process::ensure_running)?;
            seen = sqlx::query_scalar(query).fetch_one(&pool).await.context("ask the database")?;
            Ok((seen >= wanted).then_some(()))
        })
        .await;
        reached.with_context(|| {
            let agent = self.agents.first().map(Process::tail).unwrap_or_default();
            format!("the count is {seen} of {wanted}\n{}\n{agent}", self.schedulers[0].tail())
        })
    }
}

/// The binaries under test, which are in the folder of the lab's binary.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// The binary of the scheduler, which also has the operator's commands.
    pub landfall: PathBuf,
    pub agent: PathBuf,
}

impl Binaries {
    pub fn find() -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("find the lab's own executable")?;
        // Test executables are one folder deeper, in `deps`.
        let folders = own.ancestors().skip(1).take(2);
        for folder in folders {
            let found = Self { landfall: folder.join("landfall"), agent: folder.join("landfall-agent") };
            if found.landfall.exists() && found.agent.exists() {
                return Ok(found);
            }
        }
        bail!("landfall and landfall-agent are not beside {}: run cargo build --workspace first", own.display())
    }
}
