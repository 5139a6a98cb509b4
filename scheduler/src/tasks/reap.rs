//! Expires sessions that were not renewed, then takes back their leases.
//!
//! Two transactions, in this order: the session is marked under its row's lock first, so that a late heartbeat finds
//! it ended; only then do its tasks move (DESIGN §8).

use anyhow::Context;

use crate::Scheduler;
use crate::store::{self, leases, sessions};

/// The reaper.
#[derive(Debug)]
pub struct Reap {
    scheduler: Scheduler,
}

impl Reap {
    /// Reaps for this scheduler.
    pub fn new(scheduler: Scheduler) -> Self {
        Self { scheduler }
    }

    /// One pass.
    ///
    /// # Errors
    /// When the database fails; what was marked stays marked and its leases move in the next pass.
    pub async fn run_once(&self) -> anyhow::Result<()> {
        let mut tx = store::begin(&self.scheduler.pool).await.context("begin to expire sessions")?;
        let lost = sessions::expire_due(&mut tx).await.context("expire sessions")?;
        tx.commit().await.context("commit expired sessions")?;
        for agent in &lost {
            tracing::warn!(agent.id = %agent, "an agent's session expired");
        }
        let mut tx = store::begin(&self.scheduler.pool).await.context("begin to release leases")?;
        let released = leases::release_of_ended_sessions(&mut tx).await.context("release leases of ended sessions")?;
        tx.commit().await.context("commit released leases")?;
        if released > 0 || !lost.is_empty() {
            tracing::info!(released, "leases of ended sessions went back");
            self.scheduler.wakes.assign.notify_one();
            self.scheduler.wakes.measure.notify_one();
        }
        Ok(())
    }
}
