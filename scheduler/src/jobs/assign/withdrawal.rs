//! Withdraws tasks that were not begun from agents that constraints now exclude, or that no longer
//! take work.

use anyhow::Context;

use crate::jobs::assign::exclusions::Admission;
use crate::jobs::assign::plan::Planner;
use crate::jobs::leadership::Leader;
use crate::store::assignments::{self, UnassignScope};
use crate::store::tasks::unmet;

/// Withdraws a limited number of tasks from agents that are now excluded. Returns `true` if
/// more tasks may have to be withdrawn.
pub(super) async fn withdraw_excluded(scheduler: &Leader, planner: &Planner, limit: i64) -> anyhow::Result<bool> {
    let mut tx = scheduler.begin().await?;
    let batches = unmet::assigned(&mut tx).await.context("find batches with constraints")?;
    if batches.is_empty() {
        return Ok(false);
    }
    let from = Admission::read(&mut tx, batches).await?.withdrawn();
    let withdrawn = assignments::unassign(&mut tx, UnassignScope::Excluded(&from), limit).await;
    let withdrawn = withdrawn.context("withdraw from the excluded")?;
    tx.commit().await.context("commit withdrawn assignments")?;
    if withdrawn > 0 {
        planner.forget();
        tracing::info!(withdrawn, "withdrew tasks from agents that constraints now exclude");
    }
    Ok(i64::try_from(withdrawn).is_ok_and(|count| count == limit))
}

/// Withdraws a limited number of tasks from agents that no longer take work. Returns `true` if
/// more tasks may have to be withdrawn.
pub(super) async fn withdraw_unavailable(scheduler: &Leader, planner: &Planner, limit: i64) -> anyhow::Result<bool> {
    let mut tx = scheduler.begin().await?;
    let patience = scheduler.config.lease.grace;
    let withdrawn = assignments::unassign(&mut tx, UnassignScope::Unavailable(patience), limit)
        .await
        .context("withdraw assignments of lost agents")?;
    tx.commit().await.context("commit withdrawn assignments")?;
    if withdrawn > 0 {
        planner.forget();
        tracing::info!(withdrawn, "withdrew tasks from agents that are gone, draining or disconnected");
    }
    Ok(i64::try_from(withdrawn).is_ok_and(|count| count == limit))
}
