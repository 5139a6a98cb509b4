//! What operators see of a batch while it runs: its progress, why its tasks ended without pages, and
//! its remaining time. Also whether the scheduler is ready. All callers share the answers, so the
//! cost does not depend on how many operators and pages watch a batch.

use std::time::Duration;

use landfall_proto::v1;
use tonic::Status;

use crate::Scheduler;
use crate::grpc::errors;
use crate::grpc::operator::convert::duration;
use crate::model::BatchId;
use crate::store::batches::changes::{self, Change};
use crate::store::batches::list_and_progress::{self, EndReason};
use crate::store::batches::{self, Progress};
use crate::store::reports::remaining_time;
use crate::throughput::Estimate;
use crate::wake::DatabaseState;

/// Maximum age of endings as long as the batch's numbers stay the same. Rarely, different endings
/// have the same numbers.
const UNCHANGED_AGE: Duration = Duration::from_secs(10);
/// Minimum age at which an estimate is computed again, because people cannot read estimates that
/// change faster.
const LEAST_AGE: Duration = Duration::from_millis(500);
/// Time that `show_status` waits for the estimates of batches about which no caller has asked
/// recently.
pub(in crate::grpc::operator) const STATUS_PATIENCE: Duration = Duration::from_millis(50);
/// Time that `show_batch` waits for an estimate. This is long enough for a batch of a million
/// sites.
pub(in crate::grpc::operator) const SHOW_PATIENCE: Duration = Duration::from_secs(30);
/// Time that `watch_batch` waits for a new estimate before it sends the previous estimate.
pub(in crate::grpc::operator) const WATCH_PATIENCE: Duration = Duration::from_millis(200);

/// Maximum age of an answer about readiness, so that a flood of requests costs a few queries a
/// second.
const READY_AGE: Duration = Duration::from_millis(250);
/// Time after which a scheduler that does not get an answer from the database is not ready.
const READY_PATIENCE: Duration = Duration::from_secs(2);

/// Whether this scheduler can use the database, over the connection that serves nothing else, and
/// whether the database accepts changes.
pub(crate) async fn ready(scheduler: &Scheduler) -> Result<(), Status> {
    let state = scheduler.wakes.database.state();
    if state != DatabaseState::Answers {
        return Err(errors::unusable(state));
    }
    let read = || {
        let scheduler = scheduler.clone();
        async move {
            // The pool hands out a connection only after the database has answered over it.
            drop(scheduler.readiness.read("tell readiness").await?);
            Ok(())
        }
    };
    let asked = scheduler.answers.ready.ask(&scheduler.wakes, (), |_| READY_AGE, read);
    tokio::time::timeout(READY_PATIENCE, asked).await.unwrap_or_else(|_| Err(errors::away()))
}

/// The batch's progress, at most `max_age` old. Reads no tasks.
pub(in crate::grpc::operator) async fn progress(
    scheduler: &Scheduler,
    batch: BatchId,
    max_age: Duration,
) -> Result<Progress, Status> {
    let read = || {
        let scheduler = scheduler.clone();
        async move {
            let mut conn = scheduler.operators.read("read progress").await?;
            Ok(batches::progress(&mut conn, batch).await?)
        }
    };
    scheduler.answers.progress.ask(&scheduler.wakes, batch, |_| max_age, read).await
}

/// The batch's newest change, at most `max_age` old.
pub(in crate::grpc::operator) async fn change(
    scheduler: &Scheduler,
    batch: BatchId,
    max_age: Duration,
) -> Result<Option<Change>, Status> {
    let read = || {
        let scheduler = scheduler.clone();
        async move {
            let mut conn = scheduler.operators.read("follow a change").await?;
            Ok(changes::of_batch(&mut conn, batch).await?)
        }
    };
    scheduler.answers.changes.ask(&scheduler.wakes, batch, |_| max_age, read).await
}

/// Why tasks of the batch failed or were cancelled. Reads all of these tasks, and rarely as long as
/// the batch's numbers in `progress` stay the same.
pub(in crate::grpc::operator) async fn endings(
    scheduler: &Scheduler,
    batch: BatchId,
    progress: &Progress,
) -> Result<Vec<EndReason>, Status> {
    let counted = [progress.failed, progress.cancelled, progress.open(), progress.pages];
    let read = || {
        let scheduler = scheduler.clone();
        async move {
            let mut conn = scheduler.operators.read("read endings").await?;
            Ok((counted, list_and_progress::endings(&mut conn, batch).await?))
        }
    };
    let known = &scheduler.answers.endings;
    let is_unchanged = known.newest(&batch).is_some_and(|(known, _)| known == counted);
    let least = if is_unchanged { UNCHANGED_AGE } else { Duration::ZERO };
    let asked = known.ask(&scheduler.wakes, batch, |cost| cost.of_present().max(least), read);
    asked.await.map(|(_, endings)| endings)
}

/// The estimated remaining time of a batch; `None` when no task is open. Reads the whole batch.
/// Waits up to `patience` for an estimate that is being computed, then returns the previous one.
pub(in crate::grpc::operator) async fn estimate(
    scheduler: &Scheduler,
    batch: BatchId,
    patience: Duration,
) -> Option<Estimate> {
    let read = || {
        let scheduler = scheduler.clone();
        async move {
            let mut conn = scheduler.operators.read("estimate the remaining time").await?;
            Ok(remaining_time::estimate(&mut conn, batch).await?)
        }
    };
    let estimates = &scheduler.answers.estimates;
    let asked = estimates.ask(&scheduler.wakes, batch, |cost| cost.of_all().max(LEAST_AGE), read);
    // After a timeout the computation continues, and the next caller gets its result.
    match tokio::time::timeout(patience, asked).await {
        Ok(Ok(estimate)) => estimate,
        Ok(Err(_)) | Err(_) => estimates.newest(&batch).flatten(),
    }
}

impl From<Estimate> for v1::Estimate {
    fn from(estimate: Estimate) -> Self {
        let Estimate { left, sites, held, stalled, note } = estimate;
        Self { left: left.map(duration), sites, held, note, stalled }
    }
}
