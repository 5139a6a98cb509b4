//! Adds the recorded changes of each batch to the batch's stored totals. A query for the totals
//! then only has to add the few changes recorded since the last pass.

use anyhow::Context;

use crate::store::batches::list_and_progress;

use super::leadership::Leader;

/// Adds every change that was committed before the pass began.
pub async fn run_once(scheduler: &Leader) -> anyhow::Result<()> {
    let mut tx = scheduler.begin().await?;
    list_and_progress::fold(&mut tx).await.context("add up the changes of batches")?;
    tx.commit().await.context("commit the totals of batches")
}
