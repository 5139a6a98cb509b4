//! The harness: the real binaries in an emulated world, for tests and the demo alike.
//!
//! One scheduler with its private Postgres, and an agent process for each of the scenario's agents. Nothing is faked:
//! agents are enrolled by the operator's command, dial out, and reach only what the world serves. Everything lives in a
//! temporary directory; dropping the cluster kills what still runs.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use futures::StreamExt;
use nix::unistd::Pid;
use serde::Deserialize;
use sqlx::PgPool;
use tempfile::TempDir;
use tokio::process::Command;

use crate::process::{Process, until};
use crate::witness::{self, Facts};
use crate::world::World;

/// Says who is behind the requests; the lab's sites are the only ones that see it.
pub const CONTACT_URL: &str = "https://lab.test/crawler";
/// What agents may reach beside the public Internet: the lab.
const LOOPBACK: &str = "127.0.0.0/8";
/// Starting the scheduler initialises a database.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Agents connect as soon as they run.
const CONNECT_PATIENCE: Duration = Duration::from_secs(60);
/// How long a process may take to end when asked.
const STOP_PATIENCE: Duration = Duration::from_secs(20);
/// Agents enrolled at once.
const ENROLLED_AT_ONCE: usize = 6;

/// How a cluster is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// The scheduler's configuration, TOML.
    pub scheduler: String,
    /// Sites an agent crawls at once.
    pub capacity: u32,
    /// Where logs are written; none: the temporary directory.
    pub logs: Option<PathBuf>,
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    /// The world it runs in.
    pub world: World,
    /// The database, for questions of the lab's own.
    pub pool: PgPool,
    scheduler: Process,
    agents: Vec<Process>,
    binaries: Binaries,
    data_dir: PathBuf,
    logs: PathBuf,
    directory: TempDir,
}

/// The binaries under test, beside the lab's own.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// The scheduler and the operator's commands.
    pub landfall: PathBuf,
    /// The agent.
    pub agent: PathBuf,
}

impl Binaries {
    /// Finds them.
    ///
    /// # Errors
    /// When one is missing; they are built with the workspace.
    pub fn find() -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("find the lab's own executable")?;
        // Test executables lie one folder deeper, in `deps`.
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

/// What `landfall agents enrol --format json` says.
#[derive(Debug, Deserialize)]
struct Enrolment {
    command: String,
}

impl Cluster {
    /// Starts a scheduler, enrols and starts an agent for each of the scenario's, and waits until all are connected.
    ///
    /// # Errors
    /// When one of the binaries is missing or does not do its part; the message ends with the log's end.
    pub async fn start(world: World, options: &Options) -> anyhow::Result<Self> {
        let binaries = Binaries::find()?;
        // The private Postgres of root runs as another user, who must be able to pass.
        let directory = tempfile::Builder::new()
            .prefix("landfall-lab-")
            .permissions(std::fs::Permissions::from_mode(0o755))
            .tempdir_in("/tmp")
            .context("make a temporary directory")?;
        let logs = options.logs.clone().unwrap_or_else(|| directory.path().join("logs"));
        std::fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
        let data_dir = directory.path().join("scheduler");
        let config = directory.path().join("landfall.toml");
        std::fs::write(&config, &options.scheduler).context("write the scheduler's configuration")?;
        let mut scheduler = spawn_scheduler(&binaries, &data_dir, &config, &logs)?;
        let client_file = data_dir.join("client.toml");
        until("the scheduler to start", START_PATIENCE, async || {
            scheduler.ensure_running()?;
            Ok(client_file.exists().then_some(()))
        })
        .await
        .with_context(|| scheduler.tail())?;
        let pool = witness::connect(&data_dir).await?;
        let agents = Vec::new();
        let mut cluster = Self { world, pool, scheduler, agents, binaries, data_dir, logs, directory };
        cluster.enrol_all(options.capacity).await?;
        for index in 0..cluster.world.scenario().agents.len() {
            let agent = cluster.spawn_agent(index)?;
            cluster.agents.push(agent);
        }
        cluster.await_connected(cluster.agents.len()).await?;
        Ok(cluster)
    }

    /// A command of the operator's, with its connection set; add what it should do.
    pub fn landfall(&self) -> Command {
        let mut command = Command::new(&self.binaries.landfall);
        command.arg("--data-dir").arg(&self.data_dir).kill_on_drop(true);
        command
    }

    /// Runs an operator's command; returns what it printed.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub async fn operate(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let said = || format!("landfall {}", arguments.join(" "));
        let output = self.landfall().args(arguments).output().await.with_context(said)?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}\n{}", said(), errors.trim(), self.scheduler.tail());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits until this many agents have an active session.
    ///
    /// # Errors
    /// When they do not come in time.
    pub async fn await_connected(&mut self, count: usize) -> anyhow::Result<()> {
        let query = "select count(*) from sessions where state = 'active'";
        self.await_count(&format!("{count} agents to connect"), query, count, CONNECT_PATIENCE).await
    }

    /// Waits until every agent has measured every other.
    ///
    /// # Errors
    /// When they have not in time.
    pub async fn await_mesh(&mut self, patience: Duration) -> anyhow::Result<()> {
        let agents = self.agents.len();
        let pairs = agents * agents.saturating_sub(1);
        let query = "select count(*) from mesh_measurements";
        self.await_count(&format!("{pairs} measurements between agents"), query, pairs, patience).await
    }

    /// Waits until a count in the database is reached.
    ///
    /// # Errors
    /// When it is not in time, or a process ended meanwhile.
    pub async fn await_count(
        &mut self,
        awaited: &str,
        query: &'static str,
        wanted: usize,
        patience: Duration,
    ) -> anyhow::Result<()> {
        let wanted = i64::try_from(wanted).context("count")?;
        let (pool, scheduler, agents) = (self.pool.clone(), &mut self.scheduler, &mut self.agents);
        let mut seen = 0;
        let reached = until(awaited, patience, async || {
            scheduler.ensure_running()?;
            agents.iter_mut().filter(|agent| agent.pid().is_some()).try_for_each(Process::ensure_running)?;
            seen = sqlx::query_scalar(query).fetch_one(&pool).await.context("ask the database")?;
            Ok((seen >= wanted).then_some(()))
        })
        .await;
        reached.with_context(|| {
            let agent = self.agents.first().map(Process::tail).unwrap_or_default();
            format!("{seen} of {wanted} came\n{}\n{agent}", self.scheduler.tail())
        })
    }

    /// Writes the world's site list; returns where.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_site_list(&self) -> anyhow::Result<PathBuf> {
        let path = self.directory.path().join("sites.txt");
        std::fs::write(&path, self.world.site_list()).context("write the site list")?;
        Ok(path)
    }

    /// Everything the database says of a batch.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn facts(&self, batch: &str) -> anyhow::Result<Facts> {
        witness::facts(&self.pool, batch).await
    }

    /// The names of the agents, by index.
    pub fn agent_names(&self) -> Vec<String> {
        self.world.scenario().agents.iter().map(|agent| agent.name.clone()).collect()
    }

    /// The names of the sites, by index.
    pub fn site_names(&self) -> Vec<String> {
        (0..self.world.scenario().sites.len()).map(|site| self.world.site_name(site)).collect()
    }

    /// Ends an agent as a crash would.
    ///
    /// # Errors
    /// When it cannot be killed.
    pub async fn kill_agent(&mut self, index: usize) -> anyhow::Result<()> {
        self.agents[index].kill().await
    }

    /// Starts an agent again in its old folder.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn restart_agent(&mut self, index: usize) -> anyhow::Result<()> {
        self.agents[index] = self.spawn_agent(index)?;
        Ok(())
    }

    /// The processes: the scheduler's, and the agents'.
    pub fn pids(&self) -> (Option<Pid>, Vec<Pid>) {
        (self.scheduler.pid(), self.agents.iter().filter_map(Process::pid).collect())
    }

    /// Where the private Postgres keeps its cluster.
    pub fn postgres_cluster(&self) -> PathBuf {
        self.data_dir.join("postgres")
    }

    /// Where the logs are.
    pub fn logs(&self) -> &Path {
        &self.logs
    }

    /// Ends everything in order: agents, scheduler, world.
    ///
    /// # Errors
    /// When one did not end by itself when asked.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.pool.close().await;
        self.agents.iter().for_each(Process::terminate);
        let mut late = Vec::new();
        for process in &mut self.agents {
            if process.wait(STOP_PATIENCE).await?.is_none() {
                late.push(process.name().to_owned());
            }
        }
        self.scheduler.terminate();
        if self.scheduler.wait(STOP_PATIENCE).await?.is_none() {
            late.push(self.scheduler.name().to_owned());
        }
        self.world.stop().await;
        ensure!(late.is_empty(), "did not end within {} s of SIGTERM: {}", STOP_PATIENCE.as_secs(), late.join(", "));
        Ok(())
    }

    async fn enrol_all(&self, capacity: u32) -> anyhow::Result<()> {
        let agents = 0..self.world.scenario().agents.len();
        let enrolments = futures::stream::iter(agents.map(|index| self.enrol(index, capacity)));
        let results: Vec<anyhow::Result<()>> = enrolments.buffer_unordered(ENROLLED_AT_ONCE).collect().await;
        results.into_iter().collect()
    }

    /// Does what an operator does: asks for the command, and runs it where the agent stands.
    async fn enrol(&self, index: usize, capacity: u32) -> anyhow::Result<()> {
        let node = &self.world.scenario().agents[index];
        let mut ask = vec!["agents", "enrol", "--name", &node.name, "--city", &node.city, "--isp", &node.carrier];
        if !node.country.is_empty() {
            ask.extend(["--country", &node.country]);
        }
        ask.extend(["--format", "json"]);
        let printed = self.operate(&ask).await?;
        let enrolment: Enrolment = serde_json::from_str(&printed).context("read what agents enrol printed")?;
        let folder = self.agent_folder(index);
        let mut words = enrolment.command.split_whitespace();
        ensure!(words.next() == Some("landfall-agent"), "agents enrol printed another command: {}", enrolment.command);
        let mut command = Command::new(&self.binaries.agent);
        command.args(words).arg("--dir").arg(&folder).kill_on_drop(true);
        let output = command.output().await.context("run landfall-agent enrol")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "enrol {}: {}", node.name, errors.trim());
        self.settle(index, capacity, &folder)
    }

    /// Puts the agent on its loopback address, and tells it of the lab's names.
    fn settle(&self, index: usize, capacity: u32, folder: &Path) -> anyhow::Result<()> {
        let file = folder.join("agent.toml");
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let mut config: toml::Table = text.parse().with_context(|| format!("parse {}", file.display()))?;
        let lane = self.world.wan.lane();
        let mut beacon = toml::Table::new();
        let port = self.world.beacon_port();
        let listen = SocketAddr::new(lane.agent(index).into(), port);
        beacon.insert("listen".to_owned(), listen.to_string().into());
        beacon.insert("advertise".to_owned(), format!("http://{}:{port}", lane.beacon_proxy(index)).into());
        config.insert("beacon".to_owned(), beacon.into());
        config.insert("bind".to_owned(), lane.agent(index).to_string().into());
        config.insert("dns".to_owned(), self.world.names().to_string().into());
        config.insert("capacity".to_owned(), i64::from(capacity).into());
        config.insert("allow_net".to_owned(), vec![LOOPBACK].into());
        let text = toml::to_string(&config).context("write the agent's configuration")?;
        std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))
    }

    fn agent_folder(&self, index: usize) -> PathBuf {
        self.directory.path().join("agents").join(&self.world.scenario().agents[index].name)
    }

    fn spawn_agent(&self, index: usize) -> anyhow::Result<Process> {
        let mut command = Command::new(&self.binaries.agent);
        command.arg("run").arg("--dir").arg(self.agent_folder(index));
        Process::spawn(&self.world.scenario().agents[index].name, command, &self.logs)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.directory.disable_cleanup(true);
            eprintln!("the cluster's files are left in {}", self.directory.path().display());
        }
    }
}

fn spawn_scheduler(binaries: &Binaries, data_dir: &Path, config: &Path, logs: &Path) -> anyhow::Result<Process> {
    let mut command = Command::new(&binaries.landfall);
    command.arg("--data-dir").arg(data_dir).args(["up", "--listen", "127.0.0.1:0", "--contact-url", CONTACT_URL]);
    command.arg("--config").arg(config);
    Process::spawn("scheduler", command, logs)
}
