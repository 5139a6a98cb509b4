//! Ends sessions that expired without renewal, then releases their leases.
//!
//! A pass takes two transactions. The first locks the sessions' rows and marks the sessions as
//! ended, so that a late heartbeat finds its session ended. The second releases the leases. While
//! no scheduler runs or the database is unavailable, heartbeats cannot be stored, and the term of
//! the role reap expires too. The role's next leader extends every session before any session can
//! expire (`store::schedulers`).

use std::collections::BTreeMap;

use futures_util::FutureExt as _;

use crate::store::agents::{self, sessions};
use crate::store::leases;

use super::leadership::Leader;

pub async fn run_once(scheduler: &Leader) -> anyhow::Result<()> {
    let max_crashes = scheduler.config.lease.max_crashes;
    let lost = scheduler.tx("expire sessions", |tx| async move { Ok(sessions::expire_due(tx).await?) }.boxed()).await?;
    let lost = &lost;
    let release = scheduler.tx("release leases", |tx| {
        async move {
            let known = if lost.is_empty() { BTreeMap::new() } else { agents::places(tx).await? };
            Ok((known, leases::release_of_ended_sessions(tx, max_crashes).await?))
        }
        .boxed()
    });
    let (known, released) = release.await?;
    for agent in lost.iter().filter_map(|agent| known.get(agent)) {
        tracing::warn!(agent.name, "an agent's session expired");
    }
    if released > 0 || !lost.is_empty() {
        tracing::info!(released, "leases of ended sessions were released");
        scheduler.wakes.assign.notify_one();
        scheduler.wakes.measure.notify_one();
    }
    Ok(())
}
