//! Implements the operators' gRPC service for sites and batches.

use std::pin::Pin;

use futures_util::Stream;
use landfall_proto::v1;
use landfall_proto::v1::site_service_server::{SiteService, SiteServiceServer};
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::Scheduler;
use crate::model::constraints::{AgentTraits, Constraints};
use crate::model::geo::Position;
use crate::model::site_name::SiteName;
use crate::model::{AssignmentId, BatchId, SiteId};
use crate::store;
use crate::store::batches::cancel_and_retry::{self, ChangeScope};
use crate::store::batches::submissions::{self, SubmitError};
use crate::store::batches::{self, BatchFilter, constraints, end_reasons};
use crate::store::measurements::{orders, resolved_addresses};
use crate::store::reports::explain;
use crate::store::sites::open_circuits::{self, CircuitFilter};
use crate::store::sites::positions::{self, Source};
use crate::store::sites::{self, Site, verdicts};

use super::batch_removal::Removal;
use super::batch_watch::BatchWatch;
use super::convert::filters::{Places, TimeRange};
use super::convert::{explain as explained, sites as convert, timestamp, whole};
use super::named::{self, Unknown};
use super::remaining_time::SHOW_PATIENCE;
use super::submissions::{check_strategy, receive};

/// Maximum size of a request in bytes. This is enough for ten thousand names of maximum length.
const MAX_MESSAGE: usize = 4 << 20;
/// Maximum number of listed sites with an open circuit.
const CIRCUITS_AT_MOST: u64 = 1000;

#[derive(Debug, Clone)]
pub(crate) struct SiteDesk {
    scheduler: Scheduler,
    shutdown: CancellationToken,
}

impl SiteDesk {
    pub(in crate::grpc) fn new(scheduler: Scheduler, shutdown: CancellationToken) -> Self {
        Self { scheduler, shutdown }
    }

    pub(in crate::grpc) fn server(self) -> SiteServiceServer<Self> {
        SiteServiceServer::new(self).max_decoding_message_size(MAX_MESSAGE)
    }
}

#[tonic::async_trait]
impl SiteService for SiteDesk {
    type RemoveBatchStream = Pin<Box<dyn Stream<Item = Result<v1::RemoveBatchProgress, Status>> + Send>>;
    type WatchBatchStream = Pin<Box<dyn Stream<Item = Result<v1::BatchProgress, Status>> + Send>>;

    async fn submit(
        &self,
        request: Request<Streaming<v1::SubmitRequest>>,
    ) -> Result<Response<v1::SubmitResponse>, Status> {
        let incoming = request.into_inner();
        let (submission, dry_run) = receive(&self.scheduler, &self.shutdown, incoming).await?;
        let mut tx = store::begin(&self.scheduler.pool).await?;
        check_strategy(&self.scheduler, &mut tx, submission.strategy.unwrap_or_default()).await?;
        let submitted = submissions::submit(&mut tx, &submission).await?;
        let warnings = unheard_of(&mut tx, &submission.batch).await?;
        if dry_run {
            // Dropping the transaction undoes the submission.
            return Ok(Response::new(v1::SubmitResponse { warnings, ..submitted.into() }));
        }
        submissions::has_grown(&mut tx, submitted.added).await?;
        store::commit(tx).await?;
        tracing::info!(batch = submission.batch, added = submitted.added, total = submitted.batch_total, "submitted");
        self.scheduler.wakes.measure.notify_one();
        self.scheduler.wakes.assign.notify_one();
        Ok(Response::new(v1::SubmitResponse { warnings, ..submitted.into() }))
    }

    async fn watch_batch(
        &self,
        request: Request<v1::WatchBatchRequest>,
    ) -> Result<Response<Self::WatchBatchStream>, Status> {
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let batch = named::batch(&mut conn, &request.get_ref().batch).await?;
        let watch = BatchWatch::new(self.scheduler.clone(), self.shutdown.clone(), batch.id, batch.name);
        Ok(Response::new(Box::pin(watch.messages())))
    }

    async fn cancel_tasks(
        &self,
        request: Request<v1::CancelTasksRequest>,
    ) -> Result<Response<v1::CancelTasksResponse>, Status> {
        let v1::CancelTasksRequest { batch, sites, all } = request.into_inner();
        let extent = convert::extent(&sites, all, "all")?;
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let batch = named::exact_batch(&mut tx, &batch).await?;
        let cancelled = cancel_and_retry::cancel(&mut tx, batch.id, &batch.name, &extent).await?;
        store::commit(tx).await?;
        tracing::info!(batch = batch.name, cancelled.tasks, cancelled.leases, "tasks were cancelled");
        self.scheduler.wakes.wake_agents(cancelled.agents.iter().copied());
        if cancelled.leases > 0 {
            // The cancelled crawls may have freed an address for which held tasks wait.
            self.scheduler.wakes.assign.notify_one();
        }
        Ok(Response::new(cancelled.into()))
    }

    async fn retry_tasks(
        &self,
        request: Request<v1::RetryTasksRequest>,
    ) -> Result<Response<v1::RetryTasksResponse>, Status> {
        let v1::RetryTasksRequest { batch, sites, failed } = request.into_inner();
        let extent = convert::extent(&sites, failed, "failed")?;
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let batch = named::exact_batch(&mut tx, &batch).await?;
        if batch.removing {
            return Err(SubmitError::BeingRemoved(batch.name).into());
        }
        let retried = cancel_and_retry::retry(&mut tx, batch.id, &batch.name, &extent).await?;
        store::commit(tx).await?;
        tracing::info!(batch = batch.name, retried.tasks, "tasks were retried");
        self.scheduler.wakes.measure.notify_one();
        self.scheduler.wakes.assign.notify_one();
        Ok(Response::new(retried.into()))
    }

    async fn list_open_circuits(
        &self,
        request: Request<v1::ListOpenCircuitsRequest>,
    ) -> Result<Response<v1::ListOpenCircuitsResponse>, Status> {
        let v1::ListOpenCircuitsRequest { limit, agent, batch, cities, carriers, countries, since, until } =
            request.into_inner();
        let limit = if limit == 0 { CIRCUITS_AT_MOST } else { limit.min(CIRCUITS_AT_MOST) };
        let places = Places::new(&cities, &carriers, &countries);
        let TimeRange { since, until } = TimeRange::new(since, until)?;
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let batch = if batch.is_empty() { None } else { Some(named::batch(&mut conn, &batch).await?.id) };
        let agents = named::agents_at(&mut conn, &agent, &places).await?;
        let filter = CircuitFilter { batch, agents, since, until };
        let (circuits, total) = open_circuits::list(&mut conn, &filter, limit.cast_signed()).await?;
        Ok(Response::new(v1::ListOpenCircuitsResponse {
            circuits: circuits.into_iter().map(Into::into).collect(),
            total,
        }))
    }

    async fn reopen_sites(
        &self,
        request: Request<v1::ReopenSitesRequest>,
    ) -> Result<Response<v1::ReopenSitesResponse>, Status> {
        let v1::ReopenSitesRequest { sites: names, all } = request.into_inner();
        let extent = convert::extent(&names, all, "all")?;
        let mut tx = store::begin(&self.scheduler.pool).await?;
        let meant = match extent {
            ChangeScope::All => None,
            ChangeScope::Sites(names) => Some(known_sites(&mut tx, &names).await?),
        };
        let (sites, tasks) = open_circuits::reopen(&mut tx, meant.as_deref()).await?;
        store::commit(tx).await?;
        tracing::info!(sites, tasks, "sites were reopened");
        self.scheduler.wakes.assign.notify_one();
        Ok(Response::new(v1::ReopenSitesResponse { sites, tasks }))
    }

    async fn remove_batch(
        &self,
        request: Request<v1::RemoveBatchRequest>,
    ) -> Result<Response<Self::RemoveBatchStream>, Status> {
        let v1::RemoveBatchRequest { batch, cancel } = request.into_inner();
        let removal = Removal::begin(self.scheduler.clone(), self.shutdown.clone(), &batch, cancel).await?;
        Ok(Response::new(Box::pin(removal.messages())))
    }

    async fn list_batches(
        &self,
        request: Request<v1::ListBatchesRequest>,
    ) -> Result<Response<v1::ListBatchesResponse>, Status> {
        let filter = BatchFilter::try_from(request.get_ref())?;
        let limit = i64::try_from(request.get_ref().limit).ok().filter(|limit| *limit > 0);
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let (listed, all) = batches::list(&mut conn, filter, limit).await?;
        let batches: Vec<v1::Batch> = listed.into_iter().map(Into::into).collect();
        let more = all.saturating_sub(whole(batches.len()));
        Ok(Response::new(v1::ListBatchesResponse { batches, more }))
    }

    async fn show_batch(
        &self,
        request: Request<v1::ShowBatchRequest>,
    ) -> Result<Response<v1::ShowBatchResponse>, Status> {
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let batch = named::batch(&mut conn, &request.get_ref().batch).await?;
        let progress = batches::progress(&mut conn, batch.id).await?;
        let Scheduler { pool, estimates, .. } = &self.scheduler;
        let estimate = estimates.left(pool, batch.id, &progress, SHOW_PATIENCE).await;
        let progress = convert::progress(&batch.name, &progress, estimate);
        let endings = end_reasons::endings(&mut conn, batch.id).await?;
        let asked = constraints_of(&mut conn, batch.id).await?;
        Ok(Response::new(convert::shown_batch(batch, asked, progress, endings)))
    }

    async fn show_site(&self, request: Request<v1::ShowSiteRequest>) -> Result<Response<v1::ShowSiteResponse>, Status> {
        let name = convert::site_name(&request.get_ref().site)?;
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let site = named::site(&mut conn, &name).await?;
        let measurements = sites::measurements(&mut conn, &site).await?;
        let placement = sites::placement(&mut conn, &site).await?;
        let tasks = sites::tasks(&mut conn, &site).await?;
        let verdict = verdicts::of_site(&mut conn, &site).await?;
        let resolved_addresses = resolved_addresses::resolved_addresses(&mut conn, &site).await?;
        let circuit_open = open_circuits::of_site(&mut conn, site.id).await?;
        let position = position_of(&mut conn, &site).await?;
        let awaited = orders::awaited(&mut conn, &site).await?;
        let shown = convert::shown(site, measurements, placement, verdict, tasks);
        Ok(Response::new(v1::ShowSiteResponse {
            resolved_addresses: resolved_addresses.into_iter().map(Into::into).collect(),
            order: awaited.map(Into::into),
            circuit_open_since: circuit_open.map(timestamp),
            position: position.map(convert::globe_position),
            ..shown
        }))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        let v1::ExplainRequest { site, batch, assignment_id } = request.into_inner();
        let name = convert::site_name(&site)?;
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let site = named::site(&mut conn, &name).await?;
        let batch = if batch.is_empty() { None } else { Some(named::batch(&mut conn, &batch).await?) };
        let at = assignment_id.map(AssignmentId::new);
        let of_batch = batch.as_ref().map(|batch| batch.id);
        let tasks = explain::tasks(&mut conn, &site, of_batch, at).await?;
        match (tasks.is_empty(), batch, assignment_id) {
            (true, _, Some(number)) => return Err(Unknown::Choice { site: site.name, number }.into()),
            (true, Some(batch), None) => {
                return Err(Unknown::InBatch { batch: batch.name, site: site.name }.into());
            }
            _ => {}
        }
        let choices = explain::choices(&mut conn, &tasks, at).await?;
        let batches: Vec<BatchId> = tasks.iter().map(|task| task.batch).collect();
        let asked = constraints::of_batches(&mut conn, &batches).await?;
        let position = position_of(&mut conn, &site).await?;
        Ok(Response::new(v1::ExplainResponse {
            site_id: site.id.get(),
            site: site.name,
            position: position.map(convert::globe_position),
            tasks: explained::tasks(tasks, &choices, &asked),
        }))
    }
}

async fn constraints_of(conn: &mut PgConnection, batch: BatchId) -> Result<Constraints, store::Error> {
    Ok(constraints::of_batches(conn, &[batch]).await?.remove(&batch).unwrap_or_default())
}

/// The position of a site or, for an alias, of the site to which the alias points.
async fn position_of(conn: &mut PgConnection, site: &Site) -> Result<Option<(Position, Source)>, store::Error> {
    let site = site.alias_of.as_ref().map_or(site.id, |(keeper, _)| *keeper);
    Ok(positions::of_sites(conn, &[site]).await?.remove(&site))
}

/// One warning for each of a batch's constraints that no agent meets.
async fn unheard_of(conn: &mut PgConnection, batch: &str) -> Result<Vec<String>, store::Error> {
    let Some(batch) = batches::by_name(conn, batch).await? else { return Ok(Vec::new()) };
    let asked = constraints_of(conn, batch.id).await?;
    if asked == Constraints::default() {
        return Ok(Vec::new());
    }
    let fleet: Vec<AgentTraits> = constraints::traits(conn).await?.into_values().collect();
    Ok(asked.unheard_of(&fleet))
}

/// Finds the sites with these names. For an alias, returns the site to which the alias points.
async fn known_sites(conn: &mut PgConnection, names: &[SiteName]) -> Result<Vec<SiteId>, Status> {
    let mut found = Vec::with_capacity(names.len());
    for name in names {
        let site = named::exact_site(conn, name).await?;
        found.push(site.alias_of.map_or(site.id, |(keeper, _)| keeper));
    }
    Ok(found)
}
