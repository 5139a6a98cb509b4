//! Cancels, retries and removes whole batches, in pieces. An operator's call has stored what is to be
//! done (`store::batches::changes`).

use std::time::Duration;

use futures_util::FutureExt as _;

use crate::model::BatchId;
use crate::store::batches::pieces::{self, Piece, Step};

use super::leadership::Leader;

/// The rest after a round of pieces, so that other transactions get the disk in between.
const REST: Duration = Duration::from_millis(5);

/// Does one piece of each unfinished change after another, until every change is finished or waits.
/// A change whose piece failed is omitted until the next pass, so that it does not delay others.
pub async fn run_once(scheduler: &Leader) -> anyhow::Result<()> {
    let mut unfinished = scheduler
        .tx("read the unfinished changes", |tx| async move { Ok(pieces::unfinished(tx).await?) }.boxed())
        .await?;
    let mut failed = None;
    while !unfinished.is_empty() {
        let mut working = Vec::new();
        for batch in unfinished {
            match piece(scheduler, batch).await {
                Ok(Some(Piece { step: Step::Worked, .. })) => working.push(batch),
                Ok(_) => {}
                Err(error) if failed.is_none() => failed = Some(error),
                Err(_) => {}
            }
        }
        unfinished = working;
        tokio::time::sleep(REST).await;
    }
    failed.map_or(Ok(()), Err)
}

async fn piece(scheduler: &Leader, batch: BatchId) -> anyhow::Result<Option<Piece>> {
    let piece = scheduler
        .tx("change a piece of a batch", |tx| async move { Ok(pieces::piece_of(tx, batch).await?) }.boxed())
        .await?;
    if let Some(piece) = &piece {
        scheduler.wakes.wake_for(piece);
        if piece.step == Step::Finished {
            tracing::info!(%batch, change = piece.kind.name(), "a change of a batch is finished");
        }
    }
    Ok(piece)
}
