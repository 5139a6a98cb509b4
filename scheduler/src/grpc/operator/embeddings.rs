//! Implements the operators' gRPC service for embeddings.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt as _;
use landfall_proto::v1;
use landfall_proto::v1::embedding_service_server::EmbeddingService;
use sqlx::PgConnection;
use tonic::{Request, Response, Status};

use crate::gnp::{AgentQuality, Embedding, Mesh, Quality, Residual};
use crate::grpc::errors;
use crate::model::{AgentId, EmbeddingEpoch};
use crate::store::agents::{self, Agent};
use crate::store::embeddings::{self, Epoch, FitRequest, landmarks};
use crate::store::measurements;

use super::convert::{InvalidField, bounded, count, duration, rtt, timestamp};
use super::pages::{MOST_ROWS, Page};
use super::services::OperatorServices;

/// Time after which a call that waits for a fit looks and asks again without a signal. A signal from
/// another scheduler may be lost.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Minimum time between two looks. Signals may come often, and not every pass can make the fit.
const LEAST_PAUSE: Duration = Duration::from_millis(200);
/// Default time limit for waiting for a fit. A fit of a few hundred agents takes seconds.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
const LONGEST_WAIT: Duration = Duration::from_secs(300);

#[tonic::async_trait]
impl EmbeddingService for OperatorServices {
    async fn show_embedding(
        &self,
        _: Request<v1::ShowEmbeddingRequest>,
    ) -> Result<Response<v1::ShowEmbeddingResponse>, Status> {
        let mut conn = self.scheduler.operators.read("show the map").await?;
        let Some((epoch, embedding)) = newest(&mut conn).await? else {
            return Ok(Response::new(v1::ShowEmbeddingResponse::default()));
        };
        let mesh: Mesh = measurements::mesh(&mut conn).await?.into_iter().collect();
        let names = Names::new(agents::list(&mut conn).await?);
        let landmarks_chosen = !landmarks::list(&mut conn).await?.is_empty();
        drop(conn);
        // The errors of many agents take too long for a thread of the async runtime.
        let shown = tokio::task::spawn_blocking(move || {
            names.shown(epoch, &embedding, &Quality::of(&embedding, &mesh), landmarks_chosen)
        });
        Ok(Response::new(shown.await.map_err(|_| errors::failed())?))
    }

    async fn fit_embedding(
        &self,
        request: Request<v1::FitEmbeddingRequest>,
    ) -> Result<Response<v1::FitEmbeddingResponse>, Status> {
        let wait = wait_of(request.into_inner())?;
        // Subscribes before the request is stored, so that no answer is missed.
        let mut answers = self.scheduler.wakes.fitted.subscribe();
        let former = self.ask_for_fit().await?;
        let fitted = async {
            loop {
                self.scheduler.wakes.fit.notify_one();
                let pause = tokio::time::sleep(LEAST_PAUSE);
                // Fails only if the scheduler is gone. Then the shutdown ends this call.
                drop(tokio::time::timeout(LOOK_EVERY, answers.changed()).await);
                if let Some(epoch) = self.fitted_after(former.as_ref()).await? {
                    return Ok::<_, Status>(epoch);
                }
                pause.await;
            }
        };
        tokio::select! {
            fitted = fitted => Ok(Response::new(v1::FitEmbeddingResponse { epoch: Some(fitted?.into()) })),
            () = self.shutdown.cancelled() => Err(errors::stopping()),
            () = tokio::time::sleep(wait) => Ok(Response::new(v1::FitEmbeddingResponse { epoch: None })),
        }
    }

    async fn list_epochs(
        &self,
        request: Request<v1::ListEpochsRequest>,
    ) -> Result<Response<v1::ListEpochsResponse>, Status> {
        let page = Page::<i64>::of(request.get_ref())?;
        let mut conn = self.scheduler.operators.read("list epochs").await?;
        // The history has at most a thousand lines.
        let before = page.after.map(EmbeddingEpoch::new);
        let mut epochs = embeddings::history_before(&mut conn, before, MOST_ROWS).await?;
        let (more, next_page_token) = page.cut(&mut epochs, |epoch| epoch.epoch.get());
        let epochs = epochs.into_iter().map(Into::into).collect();
        Ok(Response::new(v1::ListEpochsResponse { epochs, more, next_page_token }))
    }

    async fn export_embedding(
        &self,
        _: Request<v1::ExportEmbeddingRequest>,
    ) -> Result<Response<v1::ExportEmbeddingResponse>, Status> {
        let mut conn = self.scheduler.operators.read("export the map").await?;
        let Some((epoch, embedding)) = newest(&mut conn).await? else {
            return Ok(Response::new(v1::ExportEmbeddingResponse::default()));
        };
        let names = Names::new(agents::list(&mut conn).await?);
        Ok(Response::new(names.exported(epoch, &embedding)))
    }
}

impl OperatorServices {
    /// Requests a fit. Returns the newest epoch before the fit.
    async fn ask_for_fit(&self) -> Result<Option<Epoch>, Status> {
        self.scheduler
            .operators
            .tx("ask for a fit", |tx| {
                async move {
                    let former = last(tx).await?;
                    embeddings::ask_for_fit(tx).await?;
                    Ok(former)
                }
                .boxed()
            })
            .await
    }

    /// The epoch of the requested fit; `None` until the fit is done.
    async fn fitted_after(&self, former: Option<&Epoch>) -> Result<Option<Epoch>, Status> {
        let mut conn = self.scheduler.operators.read("look for a new map").await?;
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

/// The time limit for waiting for a fit.
fn wait_of(request: v1::FitEmbeddingRequest) -> Result<Duration, InvalidField> {
    Ok(bounded("wait", request.wait, Duration::ZERO, LONGEST_WAIT)?.unwrap_or(DEFAULT_WAIT))
}

impl From<Epoch> for v1::Epoch {
    fn from(epoch: Epoch) -> Self {
        Self {
            epoch: epoch.epoch.get(),
            fitted_at: Some(timestamp(epoch.fitted_at)),
            reason: epoch.reason,
            agents: epoch.agents,
            landmarks: epoch.landmarks,
            dimensions: epoch.dimensions,
            fit_error: epoch.fit_error,
            mesh_error: epoch.mesh_error,
            median_move: epoch.median_move.map(|moved| duration(moved.0)),
        }
    }
}

/// Looks up the names of agents; a removed agent is shown by its number.
struct Names(BTreeMap<AgentId, Agent>);

impl Names {
    fn new(agents: Vec<Agent>) -> Self {
        Self(agents.into_iter().map(|agent| (agent.id, agent)).collect())
    }

    fn name(&self, agent: AgentId) -> String {
        self.0.get(&agent).map_or_else(|| format!("agent {agent}"), |agent| agent.name.clone())
    }

    fn error(&self, of: AgentQuality) -> v1::AgentError {
        v1::AgentError { agent: self.name(of.agent), median_error: of.median_error, distances: count(of.distances) }
    }

    /// The message that describes the newest embedding.
    fn shown(
        &self,
        epoch: Epoch,
        embedding: &Embedding,
        quality: &Quality,
        landmarks_chosen: bool,
    ) -> v1::ShowEmbeddingResponse {
        let residual = |residual: &Residual| v1::Residual {
            from: self.name(residual.from),
            to: self.name(residual.to),
            measured: rtt(Some(residual.measured)),
            predicted: rtt(Some(residual.predicted)),
        };
        let errors = |agents: Vec<AgentQuality>| agents.into_iter().map(|agent| self.error(agent)).collect();
        v1::ShowEmbeddingResponse {
            epoch: Some(epoch.into()),
            landmarks: embedding.landmarks().iter().map(|&landmark| self.name(landmark)).collect(),
            worst: quality.worst_pairs().iter().map(residual).collect(),
            suspects: errors(quality.suspects()),
            low_confidence: errors(quality.low_confidence()),
            mesh_error_now: quality.median_error(),
            landmarks_chosen,
        }
    }

    /// All agents that have coordinates, landmarks first.
    fn exported(&self, epoch: Epoch, embedding: &Embedding) -> v1::ExportEmbeddingResponse {
        let others = embedding.agents().keys().filter(|agent| !embedding.landmarks().contains(agent));
        let mut others: Vec<AgentId> = others.copied().collect();
        others.sort_by_key(|agent| self.name(*agent));
        let placed = embedding.landmarks().iter().copied().chain(others).filter_map(|agent| {
            let placement = embedding.placement(agent)?;
            let (height, position) = placement.coordinate.split_last()?;
            let known = self.0.get(&agent);
            Some(v1::PlacedAgent {
                agent: self.name(agent),
                city: known.map(|known| known.city.clone()).unwrap_or_default(),
                carrier: known.map(|known| known.carrier.clone()).unwrap_or_default(),
                landmark: embedding.landmarks().contains(&agent),
                position_ms: position.to_vec(),
                height_ms: *height,
                fit_error: placement.fit_error,
            })
        });
        v1::ExportEmbeddingResponse { agents: placed.collect(), epoch: Some(epoch.into()) }
    }
}
