//! Sends the progress of one batch to an operator, once per period, until the batch has ended.

use std::time::Duration;

use futures_util::{Stream, stream};
use landfall_proto::v1;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::Scheduler;
use crate::grpc::errors;
use crate::grpc::operator::convert::timestamp;
use crate::model::BatchId;
use crate::store;
use crate::store::batches::{self, Progress};
use crate::strategy::explain;
use crate::throughput::Estimate;

use super::remaining_time::WATCH_PATIENCE;

/// Interval between two messages of `watch_batch`.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// One operator who follows the progress of one batch.
pub(in crate::grpc::operator) struct BatchWatch {
    scheduler: Scheduler,
    batch: BatchId,
    name: String,
    ticks: Interval,
    shutdown: CancellationToken,
    ended: bool,
}

impl BatchWatch {
    pub(in crate::grpc::operator) fn new(
        scheduler: Scheduler,
        shutdown: CancellationToken,
        batch: BatchId,
        name: String,
    ) -> Self {
        let mut ticks = tokio::time::interval(WATCH_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { scheduler, batch, name, ticks, shutdown, ended: false }
    }

    /// Sends one message at once, and then one per period. The last message shows that the batch
    /// has ended.
    pub(in crate::grpc::operator) fn messages(self) -> impl Stream<Item = Result<v1::BatchProgress, Status>> + Send {
        stream::unfold(self, |mut watch| async move {
            if watch.ended {
                return None;
            }
            let message = watch.next().await;
            watch.ended = message.as_ref().map_or(true, |(progress, _)| progress.open() == 0);
            let message = message.map(|(progress, estimate)| progress_message(&watch.name, &progress, estimate));
            Some((message, watch))
        })
    }

    async fn next(&mut self) -> Result<(Progress, Option<Estimate>), Status> {
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return Err(errors::stopping()),
            _ = self.ticks.tick() => {}
        }
        let look = async {
            let Scheduler { pool, estimates, .. } = &self.scheduler;
            let mut conn = store::acquire(pool).await?;
            let progress = batches::progress(&mut conn, self.batch).await?;
            drop(conn);
            let estimate = estimates.left(pool, self.batch, &progress, WATCH_PATIENCE).await;
            Ok((progress, estimate))
        };
        self.scheduler.wakes.database.while_it_answers(look).await.unwrap_or_else(|| Err(errors::away()))
    }
}

/// The message about a batch's progress, with the estimated remaining time.
pub(super) fn progress_message(batch: &str, progress: &Progress, estimate: Option<Estimate>) -> v1::BatchProgress {
    v1::BatchProgress {
        batch: batch.to_owned(),
        submitted: progress.submitted,
        measuring: progress.measuring,
        located: progress.located,
        assigned: progress.assigned,
        leased: progress.leased,
        complete: progress.complete,
        truncated: progress.truncated,
        failed: progress.failed,
        cancelled: progress.cancelled,
        pages: progress.pages,
        bytes: progress.bytes,
        waiting_for: progress
            .waiting_for
            .as_ref()
            .map(|(wait, sites)| explain::sites_wait(wait, *sites))
            .unwrap_or_default(),
        wait: progress.waiting_for.as_ref().map(|(wait, _)| wait.into()),
        waiting_for_it: progress.waiting_for.as_ref().map_or(0, |(_, sites)| *sites),
        next_recrawl: progress.next_recrawl.map(timestamp),
        estimate: estimate.map(Into::into),
    }
}
