//! Implements the operators' gRPC service for reports.

use std::pin::Pin;

use futures_util::Stream;
use landfall_proto::v1;
use landfall_proto::v1::report_service_server::{ReportService, ReportServiceServer};
use sqlx::PgConnection;
use tonic::{Request, Response, Status};

use crate::Scheduler;
use crate::grpc::capacity_plan::{CapacityPlanner, PlanError, WhatIfRequest};
use crate::model::ReportGroup;
use crate::store;
use crate::store::names::Noun;
use crate::store::reports::ReportScope;
use crate::store::reports::throughput::{self, BatchGrowth};
use crate::store::reports::{self, AgentRow, accuracy, failures, hosts};

use super::convert::filters::{Places, TimeRange};
use super::convert::{reports as asked, throughput as convert};
use super::named;
use super::named::Unknown;
use super::paging::messages;

/// Maximum size of a request in bytes.
const MAX_MESSAGE: usize = 4 << 20;

#[derive(Debug, Clone)]
pub(crate) struct ReportDesk {
    scheduler: Scheduler,
    planner: CapacityPlanner,
}

impl ReportDesk {
    pub(in crate::grpc) fn new(scheduler: Scheduler) -> Self {
        Self { scheduler, planner: CapacityPlanner::default() }
    }

    pub(in crate::grpc) fn server(self) -> ReportServiceServer<Self> {
        ReportServiceServer::new(self).max_decoding_message_size(MAX_MESSAGE)
    }
}

#[tonic::async_trait]
impl ReportService for ReportDesk {
    type AssignmentsStream = Pin<Box<dyn Stream<Item = Result<v1::AssignmentRow, Status>> + Send>>;

    async fn assignments(
        &self,
        request: Request<v1::AssignmentsRequest>,
    ) -> Result<Response<Self::AssignmentsStream>, Status> {
        let request = request.into_inner();
        let places = Places::new(&request.cities, &request.carriers, &request.countries);
        let time = TimeRange::new(request.since, request.until)?;
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let wanted = reports::TaskFilter {
            batch: named::batch(&mut conn, &request.batch).await?.id,
            states: asked::states(&request.states)?,
            reasons: asked::reasons(&request.reasons)?,
            agents: named::agents_at(&mut conn, &request.agent, &places).await?,
            since: time.since,
            until: time.until,
        };
        drop(conn);
        let pages = reports::AssignmentPages::new(wanted);
        let message = |row, more| v1::AssignmentRow { more, ..v1::AssignmentRow::from(row) };
        Ok(Response::new(Box::pin(messages(self.scheduler.clone(), pages, request.limit, message))))
    }

    type HostsStream = Pin<Box<dyn Stream<Item = Result<v1::HostRow, Status>> + Send>>;

    async fn hosts(&self, request: Request<v1::HostsRequest>) -> Result<Response<Self::HostsStream>, Status> {
        let request = request.into_inner();
        let time = TimeRange::new(request.since, request.until)?;
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let wanted = hosts::HostFilter {
            batch: named::batch(&mut conn, &request.batch).await?.id,
            min_sites: request.min_sites,
            unlisted: request.unlisted,
            since: time.since,
            until: time.until,
        };
        drop(conn);
        let pages = hosts::HostPages::new(wanted);
        let message = |row, more| v1::HostRow { more, ..v1::HostRow::from(row) };
        Ok(Response::new(Box::pin(messages(self.scheduler.clone(), pages, request.limit, message))))
    }

    async fn agents(
        &self,
        request: Request<v1::AgentsReportRequest>,
    ) -> Result<Response<v1::AgentsReportResponse>, Status> {
        let v1::AgentsReportRequest { batch, agent, limit, cities, carriers, countries } = request.into_inner();
        let places = Places::new(&cities, &carriers, &countries);
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let batch = if batch.is_empty() { None } else { Some(named::batch(&mut conn, &batch).await?.id) };
        let agent = if agent.is_empty() { None } else { Some(named::former_agent(&mut conn, &agent).await?.id) };
        let agents = reports::agents(&mut conn, batch).await?;
        let wanted = agents.into_iter().filter(|row| agent.is_none_or(|agent| row.agent.id == agent));
        let wanted =
            wanted.filter(|AgentRow { agent, .. }| places.include(&agent.city, &agent.carrier, &agent.country));
        let (agents, more) = asked::first(wanted.map(Into::into).collect(), limit);
        Ok(Response::new(v1::AgentsReportResponse { agents, more }))
    }

    async fn throughput(
        &self,
        request: Request<v1::ThroughputRequest>,
    ) -> Result<Response<v1::ThroughputResponse>, Status> {
        let asked = convert::asked(request.into_inner())?;
        // The queries share one snapshot, so that the slices and the sums cover the same crawls.
        let mut tx = store::begin_snapshot(&self.scheduler.pool).await?;
        let batch = named::batch(&mut tx, &asked.batch).await?.id;
        let scope = ReportScope { batch, round: asked.round };
        if let Some(round) = asked.round {
            let newest = throughput::newest_round(&mut tx, batch).await?;
            if newest.is_none_or(|newest| round > newest) {
                let batch = asked.batch;
                return Err(Unknown::Round { batch, round, newest }.into());
            }
        }
        let report = BatchGrowth::read(&mut tx, scope, asked.slices).await?;
        store::commit(tx).await?;
        Ok(Response::new(report.into()))
    }

    async fn accuracy(&self, request: Request<v1::AccuracyRequest>) -> Result<Response<v1::AccuracyResponse>, Status> {
        let request = request.into_inner();
        let by = asked::groups(&request.by, asked::OF_CRAWLS)?;
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let wanted = crawls(&mut conn, request.crawls.unwrap_or_default()).await?;
        let rows = accuracy::accuracy(&mut conn, &wanted, by).await?;
        let (rows, more) = asked::first(rows.into_iter().map(Into::into).collect(), request.limit);
        Ok(Response::new(v1::AccuracyResponse { rows, more }))
    }

    async fn failures(&self, request: Request<v1::FailuresRequest>) -> Result<Response<v1::FailuresResponse>, Status> {
        let request = request.into_inner();
        let by = asked::groups(&request.by, ReportGroup::ALL)?;
        let reasons = asked::reasons(&request.reasons)?;
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let wanted = crawls(&mut conn, request.sites.unwrap_or_default()).await?;
        let rows = failures::failures(&mut conn, &wanted, &reasons, by).await?;
        let (rows, more) = asked::first(rows.into_iter().map(Into::into).collect(), request.limit);
        Ok(Response::new(v1::FailuresResponse { rows, more }))
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> Result<Response<v1::PlanResponse>, Status> {
        let wanted = WhatIfRequest::try_from(request.into_inner())?;
        match self.planner.plan(&self.scheduler.pool, &wanted).await {
            Ok(plan) => Ok(Response::new(plan.into())),
            Err(error) => Err(self.unplanned(error).await),
        }
    }
}

/// Looks up the names in a filter.
async fn crawls(conn: &mut PgConnection, filter: v1::CrawlFilter) -> Result<reports::CrawlFilter, Status> {
    let v1::CrawlFilter { batch, agent, cities, carriers, countries, since, until } = filter;
    let time = TimeRange::new(since, until)?;
    let places = Places::new(&cities, &carriers, &countries);
    let batch = if batch.is_empty() { None } else { Some(named::batch(conn, &batch).await?.id) };
    let agents = named::agents_at(conn, &agent, &places).await?;
    Ok(reports::CrawlFilter { batch, agents, since: time.since, until: time.until })
}

impl ReportDesk {
    /// Adds suggestions to the error for an unknown name.
    async fn unplanned(&self, error: PlanError) -> Status {
        let (noun, name) = match &error {
            PlanError::UnknownAgent(name) => (Noun::Agent, name.clone()),
            // A name with a dot is looked up as a site, because host names contain a dot, but few
            // agents' names do.
            PlanError::UnknownNear(name) if name.contains('.') => (Noun::Site, name.clone()),
            PlanError::UnknownNear(name) => (Noun::Agent, name.clone()),
            _ => return error.into(),
        };
        match store::acquire(&self.scheduler.pool).await {
            Ok(mut conn) => named::inexact(&mut conn, noun, &name, error.into()).await,
            Err(error) => error.into(),
        }
    }
}
