//! Implements the operators' gRPC service for embeddings.

use std::time::Duration;

use landfall_proto::v1;
use landfall_proto::v1::embedding_service_server::{EmbeddingService, EmbeddingServiceServer};
use sqlx::PgConnection;
use tonic::{Request, Response, Status};

use crate::Scheduler;
use crate::gnp::{Embedding, Mesh, Quality};
use crate::store::embeddings::{self, Epoch, FitRequest, landmarks};
use crate::store::{self, agents, measurements};

use super::convert::embeddings::{self as convert, Names};

/// Maximum size of a request in bytes. Every request has only a few bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// Interval at which a waiting call checks whether the fit is done. Polling is needed because
/// another scheduler may make the fit.
const LOOK_EVERY: Duration = Duration::from_millis(200);

#[derive(Debug, Clone)]
pub(crate) struct EmbeddingDesk {
    scheduler: Scheduler,
}

impl EmbeddingDesk {
    pub(in crate::grpc) fn new(scheduler: Scheduler) -> Self {
        Self { scheduler }
    }

    pub(in crate::grpc) fn server(self) -> EmbeddingServiceServer<Self> {
        EmbeddingServiceServer::new(self).max_decoding_message_size(MAX_MESSAGE)
    }
}

#[tonic::async_trait]
impl EmbeddingService for EmbeddingDesk {
    async fn show_embedding(
        &self,
        _: Request<v1::ShowEmbeddingRequest>,
    ) -> Result<Response<v1::ShowEmbeddingResponse>, Status> {
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let Some((epoch, embedding)) = newest(&mut conn).await? else {
            return Ok(Response::new(v1::ShowEmbeddingResponse::default()));
        };
        let mesh: Mesh = measurements::mesh(&mut conn).await?.into_iter().collect();
        let names = Names::new(agents::list(&mut conn).await?);
        let quality = Quality::of(&embedding, &mesh);
        let landmarks_chosen = !landmarks::list(&mut conn).await?.is_empty();
        Ok(Response::new(names.shown(epoch, &embedding, &quality, landmarks_chosen)))
    }

    async fn fit_embedding(
        &self,
        request: Request<v1::FitEmbeddingRequest>,
    ) -> Result<Response<v1::FitEmbeddingResponse>, Status> {
        let wait = convert::wait(request.into_inner())?;
        let former = self.ask().await?;
        let until = tokio::time::Instant::now() + wait;
        loop {
            self.scheduler.wakes.fit.notify_one();
            if let Some(epoch) = self.fitted_after(former.as_ref()).await? {
                return Ok(Response::new(v1::FitEmbeddingResponse { epoch: Some(epoch.into()) }));
            }
            if tokio::time::Instant::now() >= until {
                return Ok(Response::new(v1::FitEmbeddingResponse { epoch: None }));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn list_epochs(
        &self,
        request: Request<v1::ListEpochsRequest>,
    ) -> Result<Response<v1::ListEpochsResponse>, Status> {
        let limit = convert::limit(request.into_inner())?;
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let epochs = embeddings::history(&mut conn, limit).await?;
        Ok(Response::new(v1::ListEpochsResponse { epochs: epochs.into_iter().map(Into::into).collect() }))
    }

    async fn export_embedding(
        &self,
        _: Request<v1::ExportEmbeddingRequest>,
    ) -> Result<Response<v1::ExportEmbeddingResponse>, Status> {
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let Some((epoch, embedding)) = newest(&mut conn).await? else {
            return Ok(Response::new(v1::ExportEmbeddingResponse::default()));
        };
        let names = Names::new(agents::list(&mut conn).await?);
        Ok(Response::new(names.exported(epoch, &embedding)))
    }
}

impl EmbeddingDesk {
    /// Requests a fit. Returns the newest epoch before the fit.
    async fn ask(&self) -> Result<Option<Epoch>, Status> {
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        let former = last(&mut conn).await?;
        embeddings::ask_for_fit(&mut conn).await?;
        Ok(former)
    }

    /// The epoch of the requested fit; `None` until the fit is done.
    async fn fitted_after(&self, former: Option<&Epoch>) -> Result<Option<Epoch>, Status> {
        let mut conn = store::acquire(&self.scheduler.pool).await?;
        match embeddings::fit_request(&mut conn).await? {
            FitRequest::Open => Ok(None),
            FitRequest::Refused(why) => Err(Status::failed_precondition(why)),
            FitRequest::None => {
                let newest = last(&mut conn).await?;
                Ok(newest.filter(|newest| former.is_none_or(|former| newest.epoch > former.epoch)))
            }
        }
    }
}

async fn last(conn: &mut PgConnection) -> Result<Option<Epoch>, Status> {
    Ok(embeddings::history(conn, 1).await?.pop())
}

/// The newest embedding, and its entry in the history.
async fn newest(conn: &mut PgConnection) -> Result<Option<(Epoch, Embedding)>, Status> {
    let Some(embedding) = embeddings::latest(conn).await? else { return Ok(None) };
    let history = embeddings::history(conn, 1).await?;
    // If a newer embedding was stored between the two queries, the newest entry of the history
    // belongs to that embedding.
    let epoch = history.into_iter().find(|epoch| epoch.epoch == embedding.epoch());
    match epoch {
        Some(epoch) => Ok(Some((epoch, embedding))),
        None => Err(Status::unavailable("a new embedding is being stored: try again")),
    }
}
