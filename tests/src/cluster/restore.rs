//! Restores a cluster from a backup, as after the loss of its scheduler and database. The agents
//! continue to run.

use std::path::Path;

use anyhow::{Context, ensure};
use tokio::process::Command;

use super::database::private_options;
use super::running_cluster::Cluster;
use crate::evidence::batch_record;

impl Cluster {
    /// Kills the first scheduler, restores a backup into a new data directory, and starts a
    /// scheduler with this directory and the killed scheduler's address. Returns the output of the
    /// restore command. The scheduler must have a private Postgres.
    pub async fn crash_and_restore(&mut self, backup: &Path) -> anyhow::Result<String> {
        self.schedulers[0].process().kill().await?;
        let data_dir = self.folder().join("restored");
        let mut command = Command::new(&self.binaries.landfall);
        command.arg("--data-dir").arg(&data_dir).arg("restore").arg(backup);
        let output = command.output().await.context("run landfall restore")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "landfall restore: {}", errors.trim());
        self.schedulers[0].move_to(data_dir.clone()).await?;
        self.pool.close().await;
        self.pool = batch_record::connect(private_options(&data_dir)).await?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
