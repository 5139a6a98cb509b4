//! Ends sessions that expired without renewal, then releases their leases.
//!
//! A pass takes two transactions. The first locks the sessions' rows and marks the sessions as
//! ended, so that a late heartbeat finds its session ended. The second releases the leases. While
//! no scheduler runs or the database is unavailable, heartbeats cannot be stored, and the term of
//! the role reap expires too. The role's next leader extends every session before any session can
//! expire (`store::schedulers`).

use anyhow::Context;

use crate::store::agents::{self, sessions};
use crate::store::leases;

use super::leadership::Leader;

pub async fn run_once(scheduler: &Leader) -> anyhow::Result<()> {
    let mut tx = scheduler.begin().await?;
    let lost = sessions::expire_due(&mut tx).await.context("expire sessions")?;
    tx.commit().await.context("commit expired sessions")?;
    let mut tx = scheduler.begin().await?;
    if !lost.is_empty() {
        let known = agents::places(&mut tx).await.context("read the agents' names")?;
        for agent in lost.iter().filter_map(|agent| known.get(agent)) {
            tracing::warn!(agent.name, "an agent's session expired");
        }
    }
    let released = leases::release_of_ended_sessions(&mut tx, scheduler.config.lease.max_crashes)
        .await
        .context("release leases of ended sessions")?;
    tx.commit().await.context("commit released leases")?;
    if released > 0 || !lost.is_empty() {
        tracing::info!(released, "leases of ended sessions were released");
        scheduler.wakes.assign.notify_one();
        scheduler.wakes.measure.notify_one();
    }
    Ok(())
}
