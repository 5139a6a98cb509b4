//! Pruning: events older than the operator wants to keep them go, so that the log is bounded; and checkpoints
//! of tasks that ended without an outcome, and enrolment tokens that could long not be used.

use anyhow::Context;

use crate::store::{checkpoints, enrolments, events};

use super::duty::OnDuty;

/// The pruner.
#[derive(Debug)]
pub struct Prune {
    scheduler: OnDuty,
}

impl Prune {
    /// Prunes for this scheduler.
    pub const fn new(scheduler: OnDuty) -> Self {
        Self { scheduler }
    }

    /// One pass: short transactions until nothing is too old.
    ///
    /// # Errors
    /// When the database fails; what was deleted stays so.
    pub async fn run_once(&self) -> anyhow::Result<()> {
        let keep = self.scheduler.config.events.keep;
        let mut pruned = 0;
        loop {
            let mut tx = self.scheduler.begin().await?;
            let some = events::prune(&mut tx, keep).await.context("prune events")?;
            tx.commit().await.context("commit pruned events")?;
            pruned += some;
            if some == 0 {
                break;
            }
        }
        let mut tx = self.scheduler.begin().await?;
        checkpoints::prune(&mut tx).await.context("prune checkpoints")?;
        let keep = self.scheduler.config.enrolments.keep;
        enrolments::prune(&mut tx, keep).await.context("prune enrolment tokens")?;
        tx.commit().await.context("commit pruned checkpoints")?;
        if pruned > 0 {
            tracing::debug!(pruned, "old events are gone");
        }
        Ok(())
    }
}
