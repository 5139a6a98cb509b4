//! Converts and validates the messages of the gRPC service for embeddings.

use std::collections::BTreeMap;
use std::time::Duration;

use landfall_proto::v1;

use crate::gnp::{AgentQuality, Embedding, Quality, Residual};
use crate::model::AgentId;
use crate::store::agents::Agent;
use crate::store::embeddings::Epoch;

use super::{InvalidField, bounded, count, duration, rtt, timestamp};

/// Default time limit for waiting for a fit. A fit of a few hundred agents takes seconds.
const DEFAULT_WAIT: Duration = Duration::from_secs(30);
const LONGEST_WAIT: Duration = Duration::from_secs(300);
/// Default and maximum number of epochs listed.
const DEFAULT_EPOCHS: u32 = 20;
const MOST_EPOCHS: u32 = 1000;

/// The time limit for waiting for a fit.
pub(in crate::grpc) fn wait(request: v1::FitEmbeddingRequest) -> Result<Duration, InvalidField> {
    Ok(bounded("wait", request.wait, Duration::ZERO, LONGEST_WAIT)?.unwrap_or(DEFAULT_WAIT))
}

/// The maximum number of epochs to list.
pub(in crate::grpc) fn limit(request: v1::ListEpochsRequest) -> Result<u32, InvalidField> {
    match request.limit {
        0 => Ok(DEFAULT_EPOCHS),
        limit if limit <= MOST_EPOCHS => Ok(limit),
        _ => Err(InvalidField::new("limit", format!("must be 1 to {MOST_EPOCHS}"))),
    }
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
pub(in crate::grpc) struct Names(BTreeMap<AgentId, Agent>);

impl Names {
    pub(in crate::grpc) fn new(agents: Vec<Agent>) -> Self {
        Self(agents.into_iter().map(|agent| (agent.id, agent)).collect())
    }

    fn name(&self, agent: AgentId) -> String {
        self.0.get(&agent).map_or_else(|| format!("agent {agent}"), |agent| agent.name.clone())
    }

    fn error(&self, of: AgentQuality) -> v1::AgentError {
        v1::AgentError { agent: self.name(of.agent), median_error: of.median_error, distances: count(of.distances) }
    }

    /// The message that describes the newest embedding.
    pub(in crate::grpc) fn shown(
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
    pub(in crate::grpc) fn exported(&self, epoch: Epoch, embedding: &Embedding) -> v1::ExportEmbeddingResponse {
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
