//! Pruning: deletes rows that are older than the limits in the configuration's section `[keep]`, so
//! that no table grows without bound.

use anyhow::Context;

use crate::store::batches::constraints_and_quotas;
use crate::store::leases::checkpoints;
use crate::store::schema::retention::{self, RetainedKind};

use super::leadership::Leader;

/// Runs short transactions until no row is older than its limit.
pub async fn run_once(scheduler: &Leader) -> anyhow::Result<()> {
    let keep = &scheduler.config.keep;
    loop {
        let mut tx = scheduler.begin().await?;
        let pruned = retention::prune_events(&mut tx, keep.events).await.context("prune events")?;
        tx.commit().await.context("commit pruned events")?;
        if pruned == 0 {
            break;
        }
    }
    let mut tx = scheduler.begin().await?;
    checkpoints::prune(&mut tx).await.context("prune checkpoints")?;
    constraints_and_quotas::prune_spending(&mut tx).await.context("prune what counts for no quota")?;
    tx.commit().await.context("commit pruned checkpoints")?;
    for &subject in RetainedKind::ALL {
        loop {
            let mut tx = scheduler.begin().await?;
            let more = retention::prune(&mut tx, subject, keep.of(subject)).await;
            let more = more.with_context(|| format!("prune {subject:?}"))?;
            tx.commit().await.with_context(|| format!("commit pruned {subject:?}"))?;
            if !more {
                break;
            }
        }
    }
    Ok(())
}
