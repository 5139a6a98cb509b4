//! Lists batches, shows what is known about one batch, and sends its progress to an operator once
//! per period until it has ended.

use std::time::Duration;

use futures_util::{Stream, stream};
use landfall_proto::v1;
use sqlx::PgConnection;
use tokio::time::{Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::facts::{self, SHOW_PATIENCE, WATCH_PATIENCE};
use crate::Scheduler;
use crate::grpc::errors;
use crate::grpc::operator::convert::{InvalidField, TimeRange, timestamp};
use crate::grpc::operator::named;
use crate::grpc::operator::pages::Page;
use crate::model::constraints::{Constraints, ConstraintsRequest};
use crate::model::{BatchId, PolicyRequest};
use crate::store;
use crate::store::batches::changes::Change;
use crate::store::batches::list_and_progress::EndReason;
use crate::store::batches::{self, Batch, BatchFilter, BatchSummary, Progress, constraints_and_quotas};
use crate::strategy::explain;
use crate::throughput::Estimate;

pub(in crate::grpc::operator) async fn list(
    scheduler: &Scheduler,
    request: v1::ListBatchesRequest,
) -> Result<v1::ListBatchesResponse, Status> {
    let filter = BatchFilter::try_from(&request)?;
    let page = Page::<i64>::of(&request)?;
    let mut conn = scheduler.operators.read("list batches").await?;
    let (listed, all) = batches::list(&mut conn, filter, page.after.map(BatchId::new), page.most()).await?;
    let (more, next_page_token) = page.rest(&listed, all, |batch| batch.id.get());
    Ok(v1::ListBatchesResponse { batches: listed.into_iter().map(Into::into).collect(), more, next_page_token })
}

pub(in crate::grpc::operator) async fn show(
    scheduler: &Scheduler,
    request: v1::ShowBatchRequest,
) -> Result<v1::ShowBatchResponse, Status> {
    let mut conn = scheduler.operators.read("show a batch").await?;
    let batch = named::batch(&mut conn, &request.batch).await?;
    let asked = constraints_of(&mut conn, batch.id).await?;
    // The shared answers need connections, so no call may hold one while it waits for them.
    drop(conn);
    let (progress, estimate, change) = seen(scheduler, batch.id, Duration::ZERO, SHOW_PATIENCE).await?;
    let endings = match progress.failed + progress.cancelled {
        0 => Vec::new(),
        _ => facts::endings(scheduler, batch.id, &progress).await?,
    };
    let progress = progress_message(&batch.name, &progress, estimate, change);
    Ok(shown(batch, asked, progress, endings))
}

/// The progress of a batch, its estimated remaining time if a task is open, and its newest change.
async fn seen(
    scheduler: &Scheduler,
    batch: BatchId,
    max_age: Duration,
    patience: Duration,
) -> Result<(Progress, Option<Estimate>, Option<Change>), Status> {
    let progress = facts::progress(scheduler, batch, max_age).await?;
    let estimate = match progress.open() {
        0 => None,
        _ => facts::estimate(scheduler, batch, patience).await,
    };
    Ok((progress, estimate, facts::change(scheduler, batch, max_age).await?))
}

pub(super) async fn constraints_of(conn: &mut PgConnection, batch: BatchId) -> Result<Constraints, store::Error> {
    Ok(constraints_and_quotas::of_batches(conn, &[batch]).await?.remove(&batch).unwrap_or_default())
}

impl TryFrom<&v1::ListBatchesRequest> for BatchFilter {
    type Error = InvalidField;

    fn try_from(request: &v1::ListBatchesRequest) -> Result<Self, InvalidField> {
        let open = match v1::BatchState::try_from(request.state) {
            Ok(v1::BatchState::Unspecified) => None,
            Ok(v1::BatchState::Open) => Some(true),
            Ok(v1::BatchState::Ended) => Some(false),
            Err(_) => return Err(InvalidField::new("state", format!("{} is not a batch's state", request.state))),
        };
        let TimeRange { since, until } = TimeRange::new(request.since, request.until)?;
        Ok(Self { open, since, until })
    }
}

impl From<BatchSummary> for v1::Batch {
    fn from(batch: BatchSummary) -> Self {
        Self {
            name: batch.name,
            strategy: batch.strategy.to_string(),
            created_at: Some(timestamp(batch.created_at)),
            open: batch.open,
            done: batch.done,
            failed: batch.failed,
            cancelled: batch.cancelled,
        }
    }
}

/// The message with all stored facts about a batch.
fn shown(
    batch: Batch,
    asked: Constraints,
    progress: v1::BatchProgress,
    endings: Vec<EndReason>,
) -> v1::ShowBatchResponse {
    v1::ShowBatchResponse {
        name: batch.name,
        strategy: batch.strategy.to_string(),
        policy: Some(PolicyRequest::from(batch.policy).into()),
        progress: Some(progress),
        endings: endings.into_iter().map(Into::into).collect(),
        constraints: Some(ConstraintsRequest::from(asked).into()),
    }
}

impl From<EndReason> for v1::Ending {
    fn from(ended: EndReason) -> Self {
        let EndReason { kind, tasks, site, reason } = ended;
        Self { reason, tasks, kind: v1::ReasonKind::from(kind).into(), site }
    }
}

/// Interval between two messages of `watch_batch`.
const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// Maximum age of the progress in a message. Half a period, so that each message of a watch shows
/// newer progress than the one before, and all watches of a batch read it twice a period.
const WATCH_AGE: Duration = Duration::from_millis(500);

/// One operator who follows the progress of one batch.
pub(in crate::grpc::operator) struct BatchWatch {
    scheduler: Scheduler,
    batch: BatchId,
    name: String,
    ticks: Interval,
    shutdown: CancellationToken,
    /// Maximum age of the next message's progress. The first message shows at least what the caller
    /// did before, for example a retry of the batch.
    max_age: Duration,
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
        Self { scheduler, batch, name, ticks, shutdown, max_age: Duration::ZERO, ended: false }
    }

    /// Sends one message at once, and then one per period. The last message shows that the batch
    /// has ended.
    pub(in crate::grpc::operator) fn messages(self) -> impl Stream<Item = Result<v1::BatchProgress, Status>> + Send {
        stream::unfold(self, |mut watch| async move {
            if watch.ended {
                return None;
            }
            let message = watch.next().await;
            watch.ended = message.as_ref().map_or(true, |(progress, ..)| progress.open() == 0);
            let message =
                message.map(|(progress, estimate, change)| progress_message(&watch.name, &progress, estimate, change));
            Some((message, watch))
        })
    }

    async fn next(&mut self) -> Result<(Progress, Option<Estimate>, Option<Change>), Status> {
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return Err(errors::stopping()),
            _ = self.ticks.tick() => {}
        }
        let max_age = std::mem::replace(&mut self.max_age, WATCH_AGE);
        let look = seen(&self.scheduler, self.batch, max_age, WATCH_PATIENCE);
        self.scheduler.wakes.database.while_it_answers(look).await.unwrap_or_else(|| Err(errors::away()))
    }
}

/// The message about a batch's progress, with the estimated remaining time and its newest change.
fn progress_message(
    batch: &str,
    progress: &Progress,
    estimate: Option<Estimate>,
    change: Option<Change>,
) -> v1::BatchProgress {
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
        change: change.filter(|change| !change.finished).map(Into::into),
    }
}
