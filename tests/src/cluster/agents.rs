//! Enrols the agents of a cluster with the operator's command, writes their configuration, and
//! starts, kills and restarts their processes, each in its network namespace.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use futures_util::StreamExt;
use serde::Deserialize;

use super::process::Process;
use super::running_cluster::{CONNECT_PATIENCE, Cluster};

/// Number of agents that are enrolled concurrently.
const ENROLLED_AT_ONCE: usize = 6;

/// The output of `landfall agents enrol --format json`.
#[derive(Debug, Deserialize)]
struct Enrolment {
    command: String,
}

impl Cluster {
    /// Enrols every agent and writes its configuration.
    pub(crate) async fn enrol_all(&self, capacity: u32) -> anyhow::Result<()> {
        let agents = 0..self.world.scenario().agents.len();
        let enrolments = futures_util::stream::iter(agents.map(|index| self.enrol(index, capacity)));
        let results: Vec<anyhow::Result<()>> = enrolments.buffer_unordered(ENROLLED_AT_ONCE).collect().await;
        results.into_iter().collect()
    }

    /// Enrols an agent as an operator would: runs `agents enrol`, and then, in the agent's
    /// namespace, the command printed by `agents enrol`.
    async fn enrol(&self, index: usize, capacity: u32) -> anyhow::Result<()> {
        let node = &self.world.scenario().agents[index];
        let mut ask = vec!["agents", "enrol", "--name", &node.name, "--city", &node.city, "--carrier", &node.carrier];
        if !node.country.is_empty() {
            ask.extend(["--country", &node.country]);
        }
        ask.extend(["--format", "json"]);
        let printed = self.operate(&ask).await?;
        let enrolment: Enrolment = serde_json::from_str(&printed).context("read what agents enrol printed")?;
        let folder = self.agent_folder(index);
        let mut words = enrolment.command.split_whitespace();
        ensure!(words.next() == Some("landfall-agent"), "agents enrol printed another command: {}", enrolment.command);
        let namespace = self.world.namespace(index);
        let mut command = namespace.command(&self.binaries.agent);
        command.args(words).arg("--dir").arg(&folder).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = namespace.run(move || command.spawn())?.context("run landfall-agent enrol")?;
        let output = child.wait_with_output().await.context("wait for landfall-agent enrol")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "enrol {}: {}", node.name, errors.trim());
        self.settle(index, capacity)
    }

    fn settle(&self, index: usize, capacity: u32) -> anyhow::Result<()> {
        self.configure_agent(index, |config| {
            let lane = self.world.wan.lane();
            let mut beacon = toml::Table::new();
            let port = self.world.beacon_port();
            let listen = SocketAddr::new(lane.agent(index).into(), port);
            beacon.insert("listen".to_owned(), listen.to_string().into());
            beacon.insert("advertise".to_owned(), format!("http://{}:{port}", lane.beacon(index)).into());
            config.insert("beacon".to_owned(), beacon.into());
            config.insert("bind".to_owned(), lane.agent(index).to_string().into());
            config.insert("dns".to_owned(), self.world.names().to_string().into());
            config.insert("capacity".to_owned(), i64::from(capacity).into());
            config.insert("allow_net".to_owned(), vec![lane.network()].into());
            Ok(())
        })
    }

    /// The folder with an agent's configuration and files.
    pub fn agent_folder(&self, index: usize) -> PathBuf {
        self.directory.path().join("agents").join(&self.world.scenario().agents[index].name)
    }

    /// Changes an agent's configuration. The change takes effect when the agent starts again.
    pub fn configure_agent(
        &self,
        index: usize,
        change: impl FnOnce(&mut toml::Table) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let file = self.agent_folder(index).join("agent.toml");
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let mut config: toml::Table = text.parse().with_context(|| format!("parse {}", file.display()))?;
        change(&mut config)?;
        let text = toml::to_string(&config).context("write the agent's configuration")?;
        std::fs::write(&file, text).with_context(|| format!("write {}", file.display()))
    }
}

impl Cluster {
    /// Starts every agent and waits until all are connected.
    pub async fn start_agents(&mut self) -> anyhow::Result<()> {
        self.start_agents_to(self.world.scenario().agents.len()).await
    }

    /// Starts further agents until `count` are running, and waits until all are connected.
    async fn start_agents_to(&mut self, count: usize) -> anyhow::Result<()> {
        for index in self.agents.len()..count {
            let agent = self.spawn_agent(index)?;
            self.agents.push(agent);
        }
        self.await_connected(count).await
    }

    pub async fn kill_agent(&mut self, index: usize) -> anyhow::Result<()> {
        self.agents[index].kill().await
    }

    pub fn restart_agent(&mut self, index: usize) -> anyhow::Result<()> {
        self.agents[index] = self.spawn_agent(index)?;
        Ok(())
    }

    pub fn agent(&mut self, index: usize) -> &mut Process {
        &mut self.agents[index]
    }

    pub fn restart_agent_as(&mut self, index: usize, binary: &Path) -> anyhow::Result<()> {
        self.agents[index] = self.spawn_agent_of(index, binary, &self.agent_folder(index), "")?;
        Ok(())
    }

    /// Starts another process for an agent, with the files in `folder`. `suffix` is appended to the
    /// name of the process's log.
    pub fn spawn_agent_in(&self, index: usize, folder: &Path, suffix: &str) -> anyhow::Result<Process> {
        self.spawn_agent_of(index, &self.binaries.agent, folder, suffix)
    }

    /// Restarts an agent with an external command that crawls its sites.
    pub async fn crawl_with(&mut self, index: usize, command: &[&str]) -> anyhow::Result<()> {
        let exec = toml::Table::from_iter([("command".to_owned(), toml::Value::from(command.to_vec()))]);
        self.configure_agent(index, |config| {
            config.insert("exec".to_owned(), exec.into());
            Ok(())
        })?;
        let sessions = "select count(*) from sessions";
        let before: i64 = sqlx::query_scalar(sessions).fetch_one(&self.pool).await.context("count sessions")?;
        self.kill_agent(index).await?;
        self.restart_agent(index)?;
        let wanted = usize::try_from(before).context("count sessions")? + 1;
        self.await_count("the agent to connect", sessions, wanted, CONNECT_PATIENCE).await
    }

    fn spawn_agent(&self, index: usize) -> anyhow::Result<Process> {
        self.spawn_agent_of(index, &self.binaries.agent, &self.agent_folder(index), "")
    }

    fn spawn_agent_of(&self, index: usize, binary: &Path, folder: &Path, suffix: &str) -> anyhow::Result<Process> {
        let namespace = self.world.namespace(index);
        let mut command = namespace.command(binary);
        command.arg("run").arg("--dir").arg(folder);
        if let Some(environment) = self.environment.get(&index) {
            command.envs(environment.iter().map(|(name, value)| (name, value)));
        }
        let (name, logs) = (format!("{}{suffix}", self.world.scenario().agents[index].name), self.logs.clone());
        namespace.run(move || Process::spawn(&name, command, &logs))?
    }
}
