//! Starts, kills and restarts the agents of a cluster, each in its network namespace.

use std::path::Path;

use anyhow::Context;

use super::await_counts::CONNECT_PATIENCE;
use super::process::Process;
use super::running_cluster::Cluster;

impl Cluster {
    /// Starts every agent and waits until all are connected.
    pub async fn start_agents(&mut self) -> anyhow::Result<()> {
        self.start_agents_to(self.world.scenario().agents.len()).await
    }

    /// Starts further agents until `count` are running, and waits until all are connected.
    pub(crate) async fn start_agents_to(&mut self, count: usize) -> anyhow::Result<()> {
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
