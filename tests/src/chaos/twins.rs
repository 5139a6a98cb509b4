//! Runs a second process with an agent's credential, as if the agent's folder had been copied to
//! another machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::cluster::Cluster;
use crate::cluster::process::Process;

#[derive(Debug)]
pub struct AgentCopies {
    folder: PathBuf,
    running: BTreeMap<usize, Process>,
}

impl AgentCopies {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, running: BTreeMap::new() }
    }

    /// Copies an agent's credential, and starts a second process with it.
    pub fn begin(&mut self, cluster: &Cluster, agent: usize) -> anyhow::Result<()> {
        let (original, copy) = (cluster.agent_folder(agent), self.folder.join(agent.to_string()));
        copy_settings(&original, &copy).with_context(|| format!("copy {}", original.display()))?;
        let twin = cluster.spawn_agent_in(agent, &copy, "twin")?;
        self.running.insert(agent, twin);
        Ok(())
    }

    pub async fn end(&mut self, agent: usize) -> anyhow::Result<()> {
        match self.running.remove(&agent) {
            Some(mut twin) => twin.kill().await,
            None => Ok(()),
        }
    }
}

/// Copies the credential and the configuration. The copy has no beacon, because the original agent
/// uses the port of the beacon.
fn copy_settings(original: &Path, copy: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(copy)?;
    for entry in std::fs::read_dir(original)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && entry.file_name() != "agent.toml" {
            std::fs::copy(entry.path(), copy.join(entry.file_name()))?;
        }
    }
    let text = std::fs::read_to_string(original.join("agent.toml"))?;
    let mut config: toml::Table = text.parse()?;
    let beacon = toml::Table::from_iter([("enabled".to_owned(), false.into())]);
    config.insert("beacon".to_owned(), beacon.into());
    std::fs::write(copy.join("agent.toml"), toml::to_string(&config)?)?;
    Ok(())
}
