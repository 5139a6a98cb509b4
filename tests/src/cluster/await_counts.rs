//! Waits until the database of a cluster counts enough sessions, measurements or tasks, while all
//! processes run.

use std::time::Duration;

use anyhow::Context;

use super::process::{Process, until};
use super::running_cluster::Cluster;

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
