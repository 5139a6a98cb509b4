//! Ends sessions that expired without renewal, releases their leases, and takes overdue leases back
//! from agents that still send heartbeats.
//!
//! A pass takes two transactions. The first locks the sessions' rows and marks the sessions as
//! ended, so that a late heartbeat finds its session ended. The second releases the leases. While
//! no scheduler runs or the database is unavailable, heartbeats cannot be stored, and the term of
//! the role reap expires too. The role's next leader extends every session before any session can
//! expire (`store::schedulers`).
//!
//! No pass waits for a session or a task that another transaction has locked. The next pass looks
//! at it again.

use std::collections::BTreeMap;

use futures_util::FutureExt as _;

use crate::store::agents::{self, sessions};
use crate::store::leases::{self, ReleaseScope};

use super::leadership::Leader;

/// Maximum number of overdue leases that a pass takes back. Passes follow each other within a second
/// or so.
const MOST_OVERDUE: i64 = 1000;

pub async fn run_once(scheduler: &Leader) -> anyhow::Result<()> {
    let config = &scheduler.config.lease;
    let lost = scheduler.tx("expire sessions", |tx| async move { Ok(sessions::expire_due(tx).await?) }.boxed()).await?;
    let lost = &lost;
    let release = scheduler.tx("release leases", |tx| {
        async move {
            let released = leases::release_of_ended_sessions(tx, ReleaseScope::All, config.max_crashes).await?;
            let overdue = leases::take_overdue(tx, config.overtime, MOST_OVERDUE).await?;
            let nobody = lost.is_empty() && overdue.is_empty();
            let known = if nobody { BTreeMap::new() } else { agents::places(tx).await? };
            Ok((known, released, overdue))
        }
        .boxed()
    });
    let (known, released, overdue) = release.await?;
    for agent in lost.iter().filter_map(|agent| known.get(agent)) {
        tracing::warn!(agent.name, "an agent's session expired");
    }
    for agent in overdue.iter().filter_map(|agent| known.get(agent)) {
        tracing::warn!(agent.name, "a crawl did not end in time: its lease was taken back");
    }
    scheduler.wakes.wake_agents(overdue.iter().copied());
    if released > 0 || !lost.is_empty() || !overdue.is_empty() {
        tracing::info!(released, overdue = overdue.len(), "leases were released");
        scheduler.wakes.assign.notify_one();
        scheduler.wakes.measure.notify_one();
    }
    Ok(())
}
