//! The operator's service for reports.

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use landfall_proto::v1;
use landfall_proto::v1::report_service_server::{ReportService, ReportServiceServer};
use tokio::sync::Mutex;
use tonic::{Request, Response, Status};

use crate::Scheduler;
use crate::plan::{self, Wanted};
use crate::store;
use crate::store::reports;
use crate::store::throughput::{self, Grown, Scope};

use super::convert::{reports as asked, throughput as convert};
use super::status::Unknown;
use super::{named, pages};

/// The largest message taken.
const MAX_MESSAGE: usize = 4 << 20;

#[derive(Debug, Clone)]
pub(super) struct ReportDesk {
    scheduler: Scheduler,
    /// One plan at a time: each may hold a gigabyte and every core for seconds. Guards nothing else.
    planning: Arc<Mutex<()>>,
}

/// The service, with its limits.
pub(super) fn server(scheduler: Scheduler) -> ReportServiceServer<ReportDesk> {
    ReportServiceServer::new(ReportDesk { scheduler, planning: Arc::default() }).max_decoding_message_size(MAX_MESSAGE)
}

#[tonic::async_trait]
impl ReportService for ReportDesk {
    type AssignmentsStream = Pin<Box<dyn Stream<Item = Result<v1::AssignmentRow, Status>> + Send>>;

    async fn assignments(
        &self,
        request: Request<v1::AssignmentsRequest>,
    ) -> Result<Response<Self::AssignmentsStream>, Status> {
        let request = request.into_inner();
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let wanted = reports::Wanted {
            batch: named::batch(&mut conn, &request.batch).await?.id,
            states: asked::states(&request.states)?,
            reasons: asked::reasons(&request.reasons)?,
            agent: match request.agent.as_str() {
                "" => None,
                name => Some(named::former_agent(&mut conn, name).await?),
            },
        };
        drop(conn);
        let limit = Some(request.limit).filter(|limit| *limit > 0);
        Ok(Response::new(Box::pin(pages::messages(self.scheduler.clone(), wanted, limit))))
    }

    async fn agents(
        &self,
        request: Request<v1::AgentsReportRequest>,
    ) -> Result<Response<v1::AgentsReportResponse>, Status> {
        let v1::AgentsReportRequest { batch, agent, limit } = request.into_inner();
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let batch = if batch.is_empty() { None } else { Some(named::batch(&mut conn, &batch).await?.id) };
        if !agent.is_empty() {
            named::former_agent(&mut conn, &agent).await?;
        }
        let agents = reports::agents(&mut conn, batch).await?;
        let wanted = agents.into_iter().filter(|row| agent.is_empty() || row.agent == agent);
        let (agents, more) = asked::first(wanted.map(Into::into).collect(), limit);
        Ok(Response::new(v1::AgentsReportResponse { agents, more }))
    }

    async fn throughput(
        &self,
        request: Request<v1::ThroughputRequest>,
    ) -> Result<Response<v1::ThroughputResponse>, Status> {
        let asked = convert::asked(request.into_inner())?;
        // One moment for all of them: the slices are of the crawls that are summed up.
        let mut tx = store::begin_snapshot(&self.scheduler.pool).await?;
        let batch = named::batch(&mut tx, &asked.batch).await?.id;
        let scope = Scope { batch, round: asked.round };
        if let Some(round) = asked.round {
            let newest = throughput::newest_round(&mut tx, batch).await?;
            if newest.is_none_or(|newest| round > newest) {
                let batch = asked.batch;
                return Err(Unknown::Round { batch, round, newest }.into());
            }
        }
        let report = Grown::read(&mut tx, scope, asked.slices).await?;
        store::commit(tx).await?;
        Ok(Response::new(report.into()))
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> Result<Response<v1::PlanResponse>, Status> {
        let wanted = Wanted::try_from(request.into_inner())?;
        let turn = Arc::clone(&self.planning).lock_owned().await;
        let plan = plan::plan(&self.scheduler.pool, &wanted, turn).await?;
        Ok(Response::new(plan.into()))
    }
}
