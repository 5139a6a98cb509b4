//! Implements the operators' gRPC service for sites and batches. Lists and reopens sites whose
//! circuit is open.

use std::pin::Pin;

use futures_util::Stream;
use landfall_proto::v1;
use landfall_proto::v1::site_service_server::{SiteService, SiteServiceServer};
use sqlx::PgConnection;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::Scheduler;
use crate::model::SiteId;
use crate::model::site_name::SiteName;
use crate::store;
use crate::store::batches::cancel_and_retry::ChangeScope;
use crate::store::sites::open_circuits::{self, CircuitFilter, OpenCircuit};

use super::batches::cancel_and_retry::{self, extent};
use super::batches::list_and_show;
use super::batches::removal::Removal;
use super::batches::submissions;
use super::batches::watch::BatchWatch;
use super::convert::filters::{Places, TimeRange};
use super::convert::timestamp;
use super::{explain, named, site_details};

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
        Ok(Response::new(submissions::submit(&self.scheduler, &self.shutdown, request.into_inner()).await?))
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
        Ok(Response::new(cancel_and_retry::cancel(&self.scheduler, request.into_inner()).await?))
    }

    async fn retry_tasks(
        &self,
        request: Request<v1::RetryTasksRequest>,
    ) -> Result<Response<v1::RetryTasksResponse>, Status> {
        Ok(Response::new(cancel_and_retry::retry(&self.scheduler, request.into_inner()).await?))
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
        let extent = extent(&names, all, "all")?;
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
        Ok(Response::new(list_and_show::list(&self.scheduler, request.into_inner()).await?))
    }

    async fn show_batch(
        &self,
        request: Request<v1::ShowBatchRequest>,
    ) -> Result<Response<v1::ShowBatchResponse>, Status> {
        Ok(Response::new(list_and_show::show(&self.scheduler, request.into_inner()).await?))
    }

    async fn show_site(&self, request: Request<v1::ShowSiteRequest>) -> Result<Response<v1::ShowSiteResponse>, Status> {
        Ok(Response::new(site_details::show(&self.scheduler, request.into_inner()).await?))
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        Ok(Response::new(explain::explain(&self.scheduler, request.into_inner()).await?))
    }
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

impl From<OpenCircuit> for v1::OpenCircuit {
    fn from(circuit: OpenCircuit) -> Self {
        let OpenCircuit { site, since, agent, message, waiting } = circuit;
        Self { site, since: Some(timestamp(since)), agent, message, waiting }
    }
}
