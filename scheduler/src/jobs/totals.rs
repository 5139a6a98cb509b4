//! Adds the recorded changes of each batch to the batch's stored totals. A query for the totals
//! then only has to add the few changes recorded since the last pass.

use futures_util::FutureExt as _;

use crate::store::batches::list_and_progress;

use super::leadership::Leader;

/// Adds every change that was committed before the pass began.
pub async fn run_once(scheduler: &Leader) -> anyhow::Result<()> {
    scheduler.tx("add up batches", |tx| async move { Ok(list_and_progress::fold(tx).await?) }.boxed()).await
}
