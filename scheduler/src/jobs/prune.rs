//! Pruning: deletes rows that are older than the limits in the configuration's section `[keep]`, so
//! that no table grows without bound.

use anyhow::Context;
use futures_util::FutureExt as _;

use crate::store::batches::constraints_and_quotas;
use crate::store::leases::checkpoints;
use crate::store::schema::retention::{self, RetainedKind};

use super::leadership::Leader;

/// Runs short transactions until no row is older than its limit.
pub async fn run_once(scheduler: &Leader) -> anyhow::Result<()> {
    let keep = &scheduler.config.keep;
    let keep_events = keep.events;
    while scheduler
        .tx("prune events", |tx| async move { Ok(retention::prune_events(tx, keep_events).await?) }.boxed())
        .await?
        > 0
    {}
    let prune_past = scheduler.tx("prune checkpoints and spending", |tx| {
        async move {
            checkpoints::prune(tx).await?;
            Ok(constraints_and_quotas::prune_spending(tx).await?)
        }
        .boxed()
    });
    prune_past.await?;
    for &subject in RetainedKind::ALL {
        let prune = || {
            scheduler.tx("prune", |tx| {
                async move {
                    let pruned = retention::prune(tx, subject, keep.of(subject)).await;
                    pruned.with_context(|| format!("{subject:?}"))
                }
                .boxed()
            })
        };
        while prune().await? {}
    }
    Ok(())
}
