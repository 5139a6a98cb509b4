//! Expires sessions that were not renewed, then takes back their leases.
//!
//! Two transactions, in this order: the session is marked under its row's lock first, so that a late heartbeat finds
//! it ended; only then do its tasks move. While the database was away no heartbeat could be recorded: then
//! every session is extended once before any may expire.

use std::sync::{Mutex, PoisonError};

use anyhow::Context;
use tokio::time::Instant;

use crate::Scheduler;
use crate::store::{self, leases, sessions};

/// The reaper.
#[derive(Debug)]
pub struct Reap {
    scheduler: Scheduler,
    /// The last pass that reached the database. Never held across an await.
    succeeded: Mutex<Instant>,
}

impl Reap {
    /// Reaps for this scheduler.
    pub fn new(scheduler: Scheduler) -> Self {
        Self { scheduler, succeeded: Mutex::new(Instant::now()) }
    }

    /// One pass.
    ///
    /// # Errors
    /// When the database fails; what was marked stays marked and its leases move in the next pass.
    pub async fn run_once(&self) -> anyhow::Result<()> {
        let lease = &self.scheduler.config.lease;
        // Passes come several times a grace; with none for a whole one, heartbeats went unrecorded as well.
        if self.last_success().elapsed() > lease.grace {
            self.extend().await?;
        }
        self.expire().await?;
        *self.succeeded.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(())
    }

    fn last_success(&self) -> Instant {
        *self.succeeded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn extend(&self) -> anyhow::Result<()> {
        let lease = &self.scheduler.config.lease;
        let mut tx = store::begin(&self.scheduler.pool).await.context("begin to extend sessions")?;
        let extended = sessions::extend_all(&mut tx, lease.life + lease.grace).await.context("extend sessions")?;
        tx.commit().await.context("commit extended sessions")?;
        tracing::warn!(sessions = extended, "the database was away; sessions are extended once");
        Ok(())
    }

    async fn expire(&self) -> anyhow::Result<()> {
        let mut tx = store::begin(&self.scheduler.pool).await.context("begin to expire sessions")?;
        let lost = sessions::expire_due(&mut tx).await.context("expire sessions")?;
        tx.commit().await.context("commit expired sessions")?;
        for agent in &lost {
            tracing::warn!(agent.id = %agent, "an agent's session expired");
        }
        let mut tx = store::begin(&self.scheduler.pool).await.context("begin to release leases")?;
        let released = leases::release_of_ended_sessions(&mut tx, self.scheduler.config.lease.max_crashes)
            .await
            .context("release leases of ended sessions")?;
        tx.commit().await.context("commit released leases")?;
        if released > 0 || !lost.is_empty() {
            tracing::info!(released, "leases of ended sessions went back");
            self.scheduler.wakes.assign.notify_one();
            self.scheduler.wakes.measure.notify_one();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::tasks::trial::Trial;

    const OVERDUE: &str = "update sessions set expires_at = now() - interval '1 second'";

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn no_session_expires_for_the_time_the_database_was_away(pool: PgPool) {
        let trial = Trial::new(pool);
        trial.connect(1).await;
        let reap = Reap::new(trial.scheduler.clone());
        let active = "select count(*) from sessions where state = 'active'";
        trial.execute(OVERDUE).await;
        let long_ago = Instant::now().checked_sub(2 * trial.scheduler.config.lease.grace).expect("a running clock");
        *reap.succeeded.lock().expect("not poisoned") = long_ago;
        trial.execute("alter table sessions rename to away").await;
        reap.run_once().await.expect_err("the database is away");
        trial.execute("alter table away rename to sessions").await;

        reap.run_once().await.expect("a pass");
        assert_eq!(trial.count(active).await, 1, "extended");
        trial.execute(OVERDUE).await;
        reap.run_once().await.expect("a pass");
        assert_eq!(trial.count(active).await, 0, "only once");
    }
}
