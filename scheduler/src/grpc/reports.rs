//! The operator's service for reports.

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use landfall_proto::v1;
use landfall_proto::v1::report_service_server::{ReportService, ReportServiceServer};
use tokio::sync::Mutex;
use tonic::{Request, Response, Status};

use crate::Scheduler;
use crate::model::{AgentId, BatchId};
use crate::plan::{self, Wanted};
use crate::store::reports;
use crate::store::throughput::{self, Grown, Scope};
use crate::store::{self, agents, batches};

use super::convert::{reports as asked, throughput as convert};
use super::{pages, status};

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
        let request = request.into_inner();
        let (states, reasons) = (asked::states(&request.states), asked::reasons(&request.reasons));
        let wanted = reports::Wanted {
            batch: self.batch(request.batch).await?,
            states: states.map_err(status::from_field)?,
            reasons: reasons.map_err(status::from_field)?,
            agent: self.agent(request.agent).await?,
        };
        let limit = Some(request.limit).filter(|limit| *limit > 0);
        Ok(Response::new(Box::pin(pages::messages(self.scheduler.clone(), wanted, limit))))
    }

    async fn agents(
        &self,
        request: Request<v1::AgentsReportRequest>,
    ) -> Result<Response<v1::AgentsReportResponse>, Status> {
        let v1::AgentsReportRequest { batch, agent, limit } = request.into_inner();
        let batch = if batch.is_empty() { None } else { Some(self.batch(batch).await?) };
        self.agent(agent.clone()).await?;
        let mut conn = self.scheduler.pool.acquire().await.map_err(|error| status::from_store(error.into()))?;
        let agents = reports::agents(&mut conn, batch).await.map_err(status::from_store)?;
        let wanted = agents.into_iter().filter(|row| agent.is_empty() || row.agent == agent);
        let (agents, more) = asked::first(wanted.map(Into::into).collect(), limit);
        Ok(Response::new(v1::AgentsReportResponse { agents, more }))
    }

    async fn throughput(
        &self,
        request: Request<v1::ThroughputRequest>,
    ) -> Result<Response<v1::ThroughputResponse>, Status> {
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

    /// The agent that is named, if one is.
    async fn agent(&self, name: String) -> Result<Option<AgentId>, Status> {
        if name.is_empty() {
            return Ok(None);
        }
        let mut conn = self.scheduler.pool.acquire().await.map_err(|error| status::from_store(error.into()))?;
        let agent = agents::show(&mut conn, &name).await.map_err(status::from_store)?;
        agent.map(|agent| Some(agent.id)).ok_or_else(|| status::from_unknown(status::Unknown::Agent(name)))
    }
}
