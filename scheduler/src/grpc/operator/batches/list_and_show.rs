//! Lists batches, and shows what is known about one batch: its policy, constraints, progress and
//! the reasons why its sites ended.

use landfall_proto::v1;
use sqlx::PgConnection;
use tonic::Status;

use super::remaining_time::SHOW_PATIENCE;
use super::watch::progress_message;
use crate::Scheduler;
use crate::grpc::operator::convert::filters::TimeRange;
use crate::grpc::operator::convert::{InvalidField, timestamp, whole};
use crate::grpc::operator::named;
use crate::model::constraints::{Constraints, ConstraintsRequest};
use crate::model::{BatchId, PolicyRequest};
use crate::store;
use crate::store::batches::end_reasons::{self, EndReason};
use crate::store::batches::{self, Batch, BatchFilter, BatchSummary, constraints};

pub(in crate::grpc::operator) async fn list(
    scheduler: &Scheduler,
    request: v1::ListBatchesRequest,
) -> Result<v1::ListBatchesResponse, Status> {
    let filter = BatchFilter::try_from(&request)?;
    let limit = i64::try_from(request.limit).ok().filter(|limit| *limit > 0);
    let mut conn = store::acquire(&scheduler.pool).await?;
    let (listed, all) = batches::list(&mut conn, filter, limit).await?;
    let batches: Vec<v1::Batch> = listed.into_iter().map(Into::into).collect();
    let more = all.saturating_sub(whole(batches.len()));
    Ok(v1::ListBatchesResponse { batches, more })
}

pub(in crate::grpc::operator) async fn show(
    scheduler: &Scheduler,
    request: v1::ShowBatchRequest,
) -> Result<v1::ShowBatchResponse, Status> {
    let mut conn = store::acquire(&scheduler.pool).await?;
    let batch = named::batch(&mut conn, &request.batch).await?;
    let progress = batches::progress(&mut conn, batch.id).await?;
    let Scheduler { pool, estimates, .. } = scheduler;
    let estimate = estimates.left(pool, batch.id, &progress, SHOW_PATIENCE).await;
    let progress = progress_message(&batch.name, &progress, estimate);
    let endings = end_reasons::endings(&mut conn, batch.id).await?;
    let asked = constraints_of(&mut conn, batch.id).await?;
    Ok(shown(batch, asked, progress, endings))
}

pub(super) async fn constraints_of(conn: &mut PgConnection, batch: BatchId) -> Result<Constraints, store::Error> {
    Ok(constraints::of_batches(conn, &[batch]).await?.remove(&batch).unwrap_or_default())
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
