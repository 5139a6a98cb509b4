//! Stops the processes of a cluster, and kills those that do not end in time.

use std::time::Duration;

use anyhow::ensure;

use super::process::Process;
use super::running_cluster::Cluster;

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
        if let Some(postgres) = self.postgres.take() {
            postgres.lock().await.stop().await?;
        }
        if let Some(database) = self.database.take() {
            database.remove().await?;
        }
        self.world.stop().await;
        ensure!(late.is_empty(), "did not end within {} s of SIGTERM: {}", STOP_PATIENCE.as_secs(), late.join(", "));
        Ok(())
    }
}
