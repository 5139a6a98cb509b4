//! The operator's service for reports.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, stream};
use landfall_proto::v1;
use landfall_proto::v1::report_service_server::{ReportService, ReportServiceServer};
use tokio::sync::Mutex;
use tonic::{Request, Response, Status};

use crate::Scheduler;
use crate::model::BatchId;
use crate::plan::{self, Wanted};
use crate::store::reports::{self, AssignmentRow, Key};
use crate::store::throughput::{self, Grown, Scope};
use crate::store::{self, batches};

use super::convert::throughput as convert;
use super::{auth, status};

/// The largest message taken.
const MAX_MESSAGE: usize = 4 << 20;

/// Serves `landfall.v1.ReportService`.
#[derive(Debug, Clone)]
pub struct ReportDesk {
    scheduler: Scheduler,
    /// One plan at a time: each may hold a gigabyte and every core for seconds. Guards nothing else.
    planning: Arc<Mutex<()>>,
}

/// The service, with its limits.
pub fn server(scheduler: Scheduler) -> ReportServiceServer<ReportDesk> {
    ReportServiceServer::new(ReportDesk { scheduler, planning: Arc::default() }).max_decoding_message_size(MAX_MESSAGE)
}

#[tonic::async_trait]
impl ReportService for ReportDesk {
    type AssignmentsStream = Pin<Box<dyn Stream<Item = Result<v1::AssignmentRow, Status>> + Send>>;

    async fn assignments(
        &self,
        request: Request<v1::AssignmentsRequest>,
    ) -> Result<Response<Self::AssignmentsStream>, Status> {
        auth::operator(&self.scheduler, request.metadata()).await?;
        let batch = self.batch(request.into_inner().batch).await?;
        let pages = Pages { scheduler: self.scheduler.clone(), batch, rows: VecDeque::new(), after: None, last: false };
        Ok(Response::new(Box::pin(pages.messages())))
    }

    async fn agents(
        &self,
        request: Request<v1::AgentsReportRequest>,
    ) -> Result<Response<v1::AgentsReportResponse>, Status> {
        auth::operator(&self.scheduler, request.metadata()).await?;
        let batch = match request.into_inner().batch {
            all if all.is_empty() => None,
            name => Some(self.batch(name).await?),
        };
        let mut conn = self.scheduler.pool.acquire().await.map_err(|error| status::from_store(error.into()))?;
        let agents = reports::agents(&mut conn, batch).await.map_err(status::from_store)?;
        Ok(Response::new(v1::AgentsReportResponse { agents: agents.into_iter().map(Into::into).collect() }))
    }

    async fn throughput(
        &self,
        request: Request<v1::ThroughputRequest>,
    ) -> Result<Response<v1::ThroughputResponse>, Status> {
        auth::operator(&self.scheduler, request.metadata()).await?;
        let asked = convert::asked(request.into_inner()).map_err(status::from_field)?;
        let batch = self.batch(asked.batch.clone()).await?;
        let scope = Scope { batch, round: asked.round };
        // One moment for all of them: the slices are of the crawls that are summed up.
        let mut tx = store::begin_snapshot(&self.scheduler.pool).await.map_err(status::from_store)?;
        if let Some(round) = asked.round {
            let newest = throughput::newest_round(&mut tx, batch).await.map_err(status::from_store)?;
            if newest.is_none_or(|newest| round > newest) {
                let batch = asked.batch;
                return Err(status::from_unknown(status::Unknown::Round { batch, round, newest }));
            }
        }
        let report = Grown::read(&mut tx, scope, asked.slices).await.map_err(status::from_store)?;
        tx.commit().await.map_err(|error| status::from_store(error.into()))?;
        Ok(Response::new(report.into()))
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> Result<Response<v1::PlanResponse>, Status> {
        auth::operator(&self.scheduler, request.metadata()).await?;
        let wanted = Wanted::try_from(request.into_inner()).map_err(status::from_field)?;
        let turn = Arc::clone(&self.planning).lock_owned().await;
        let plan = plan::plan(&self.scheduler.pool, &wanted, turn).await.map_err(status::from_plan)?;
        Ok(Response::new(plan.into()))
    }
}

impl ReportDesk {
    async fn batch(&self, name: String) -> Result<BatchId, Status> {
        let mut conn = self.scheduler.pool.acquire().await.map_err(|error| status::from_store(error.into()))?;
        let batch = batches::by_name(&mut conn, &name).await.map_err(status::from_store)?;
        batch.map(|batch| batch.id).ok_or_else(|| status::from_unknown(status::Unknown::Batch(name)))
    }
}

/// A report that is read page by page, as fast as its reader takes it; no connection is held between two pages.
struct Pages {
    scheduler: Scheduler,
    batch: BatchId,
    rows: VecDeque<AssignmentRow>,
    after: Option<Key>,
    /// No page follows the rows at hand.
    last: bool,
}

impl Pages {
    fn messages(self) -> impl Stream<Item = Result<v1::AssignmentRow, Status>> + Send {
        stream::unfold(self, |mut pages| async move {
            if pages.rows.is_empty()
                && !pages.last
                && let Err(error) = pages.turn().await
            {
                pages.last = true;
                return Some((Err(status::from_store(error)), pages));
            }
            let row = pages.rows.pop_front()?;
            Some((Ok(row.into()), pages))
        })
    }

    async fn turn(&mut self) -> Result<(), store::Error> {
        let mut conn = self.scheduler.pool.acquire().await?;
        self.rows = reports::assignments(&mut conn, self.batch, self.after.as_ref()).await?.into();
        self.after = self.rows.back().map(AssignmentRow::key);
        self.last = self.after.is_none();
        Ok(())
    }
}
