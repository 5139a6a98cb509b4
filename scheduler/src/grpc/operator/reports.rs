//! Implements the operators' gRPC service for reports.

use std::pin::Pin;

use futures_util::Stream;
use landfall_proto::v1;
use landfall_proto::v1::report_service_server::ReportService;
use sqlx::PgConnection;
use tonic::{Request, Response, Status};

use super::capacity_plan::{self, PlanError};
use super::convert::{InvalidField, Places, TimeRange, reasons, rtt, timestamp};
use super::pages::Page;
use super::services::OperatorServices;
use super::{assignments_and_hosts, named, throughput};
use crate::model::{AgentId, ReportGroup};
use crate::store::agents;
use crate::store::names::Noun;
use crate::store::reports::accuracy_failures_agents::{self, AccuracyRow, FailureRow};
use crate::store::reports::{self, AgentRow, Groups};
use crate::strategy::LoadLevel;

#[tonic::async_trait]
impl ReportService for OperatorServices {
    type AssignmentsStream = Pin<Box<dyn Stream<Item = Result<v1::AssignmentRow, Status>> + Send>>;

    async fn assignments(
        &self,
        request: Request<v1::AssignmentsRequest>,
    ) -> Result<Response<Self::AssignmentsStream>, Status> {
        let rows = assignments_and_hosts::assignments(self.scheduler.clone(), request.into_inner()).await?;
        Ok(Response::new(Box::pin(rows)))
    }

    type HostsStream = Pin<Box<dyn Stream<Item = Result<v1::HostRow, Status>> + Send>>;

    async fn hosts(&self, request: Request<v1::HostsRequest>) -> Result<Response<Self::HostsStream>, Status> {
        let rows = assignments_and_hosts::hosts(self.scheduler.clone(), request.into_inner()).await?;
        Ok(Response::new(Box::pin(rows)))
    }

    async fn agents(
        &self,
        request: Request<v1::AgentsReportRequest>,
    ) -> Result<Response<v1::AgentsReportResponse>, Status> {
        let page = Page::<String>::of(request.get_ref())?;
        let v1::AgentsReportRequest { batch, agent, cities, carriers, countries, .. } = request.into_inner();
        let places = Places::new(&cities, &carriers, &countries);
        let mut conn = self.scheduler.operators.read("report agents").await?;
        let batch = if batch.is_empty() { None } else { Some(named::batch(&mut conn, &batch).await?.id) };
        let agent = if agent.is_empty() { None } else { Some(named::former_agent(&mut conn, &agent).await?.id) };
        let mut wanted = agents::outlines(&mut conn, page.after.as_deref()).await?;
        wanted.retain(|one| {
            agent.is_none_or(|agent| one.id == agent) && places.include(&one.city, &one.carrier, &one.country)
        });
        let (more, next_page_token) = page.cut(&mut wanted, |agent| agent.name.clone());
        let ids: Vec<AgentId> = wanted.iter().map(|agent| agent.id).collect();
        let agents = reports::agents(&mut conn, batch, &ids).await?.into_iter().map(Into::into).collect();
        Ok(Response::new(v1::AgentsReportResponse { agents, more, next_page_token }))
    }

    async fn throughput(
        &self,
        request: Request<v1::ThroughputRequest>,
    ) -> Result<Response<v1::ThroughputResponse>, Status> {
        Ok(Response::new(throughput::report(&self.scheduler, request.into_inner()).await?))
    }

    async fn accuracy(&self, request: Request<v1::AccuracyRequest>) -> Result<Response<v1::AccuracyResponse>, Status> {
        let page = Page::of(request.get_ref())?;
        let request = request.into_inner();
        let by = groups(&request.by, OF_CRAWLS)?;
        let mut conn = self.scheduler.operators.snapshot("report accuracy").await?;
        let wanted = crawls(&mut conn, request.crawls.unwrap_or_default()).await?;
        let (rows, all) =
            accuracy_failures_agents::accuracy(&mut conn, &wanted, by, page.after.as_ref(), page.most()).await?;
        let (more, next_page_token) = page.rest(&rows, all, AccuracyRow::key);
        let rows = rows.into_iter().map(Into::into).collect();
        Ok(Response::new(v1::AccuracyResponse { rows, more, next_page_token }))
    }

    async fn failures(&self, request: Request<v1::FailuresRequest>) -> Result<Response<v1::FailuresResponse>, Status> {
        let page = Page::of(request.get_ref())?;
        let request = request.into_inner();
        let by = groups(&request.by, ReportGroup::ALL)?;
        let reasons = reasons(&request.reasons)?;
        let mut conn = self.scheduler.operators.read("report failures").await?;
        let wanted = crawls(&mut conn, request.sites.unwrap_or_default()).await?;
        let (after, limit) = (page.after.as_ref(), page.most());
        let (rows, all) = accuracy_failures_agents::failures(&mut conn, &wanted, &reasons, by, after, limit).await?;
        let (more, next_page_token) = page.rest(&rows, all, FailureRow::key);
        let rows = rows.into_iter().map(Into::into).collect();
        Ok(Response::new(v1::FailuresResponse { rows, more, next_page_token }))
    }

    async fn plan(&self, request: Request<v1::PlanRequest>) -> Result<Response<v1::PlanResponse>, Status> {
        let (request, strategy) = capacity_plan::checked(request.into_inner())?;
        match self.planner.plan(&self.scheduler.operators, &request, strategy).await {
            Ok(plan) => Ok(Response::new(plan)),
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

impl OperatorServices {
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
        match self.scheduler.operators.read("suggest names").await {
            Ok(mut conn) => named::inexact(&mut conn, noun, &name, error.into()).await,
            Err(error) => error.into(),
        }
    }
}

/// The properties by which rows about crawls may be grouped.
const OF_CRAWLS: &[ReportGroup] = &[ReportGroup::Agent, ReportGroup::City, ReportGroup::Carrier, ReportGroup::Day];

/// Parses the properties by which a report's rows are grouped. Each property must be one of
/// `permitted`.
fn groups(asked: &[i32], permitted: &[ReportGroup]) -> Result<Groups, InvalidField> {
    let known = |value: &i32| ReportGroup::try_from(v1::ReportGroup::try_from(*value).ok()?).ok();
    let unknown = |value: &i32| InvalidField::new("by", format!("{value} is nothing that this report has rows about"));
    let groups: Result<Vec<ReportGroup>, InvalidField> = asked
        .iter()
        .map(|value| known(value).filter(|group| permitted.contains(group)).ok_or_else(|| unknown(value)))
        .collect();
    Ok(Groups::of(&groups?))
}

impl From<AccuracyRow> for v1::AccuracyRow {
    fn from(row: AccuracyRow) -> Self {
        let AccuracyRow { agent, city, carrier, day, crawled, probed } = row;
        Self {
            agent: agent.unwrap_or_default(),
            city: city.unwrap_or_default(),
            carrier: carrier.unwrap_or_default(),
            day: day.unwrap_or_default(),
            crawls: crawled.count,
            median_error: crawled.median,
            p90_error: crawled.p90,
            median_ratio: crawled.ratio,
            probed: probed.count,
            probed_median_error: probed.median,
            probed_p90_error: probed.p90,
            probed_median_ratio: probed.ratio,
        }
    }
}

impl From<FailureRow> for v1::FailureRow {
    fn from(row: FailureRow) -> Self {
        Self {
            reason_kind: row.reason.map_or(v1::ReasonKind::Unspecified, Into::into).into(),
            agent: row.agent.unwrap_or_default(),
            city: row.city.unwrap_or_default(),
            carrier: row.carrier.unwrap_or_default(),
            day: row.day.unwrap_or_default(),
            batch: row.batch.unwrap_or_default(),
            sites: row.sites,
            share: row.share,
            last_failed_at: Some(timestamp(row.last)),
            example: row.example,
        }
    }
}

impl From<AgentRow> for v1::AgentRow {
    fn from(row: AgentRow) -> Self {
        let agent = row.agent;
        Self {
            landmark: agent.landmark,
            connected: agent.connected && !agent.disconnected,
            load_level: agent.level().map(LoadLevel::get),
            service: v1::ServiceState::from(agent.service()).into(),
            agent: agent.name,
            city: agent.city,
            carrier: agent.carrier,
            assigned: row.assigned,
            complete: row.complete,
            truncated: row.truncated,
            failed: row.failed,
            pages: row.pages,
            bytes: row.bytes,
            mean_rtt: rtt(row.mean_rtt),
        }
    }
}
