//! Runs operator's commands against a cluster's schedulers.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::running_cluster::Cluster;

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
