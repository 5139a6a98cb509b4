//! Converts the messages about landmarks: elections, their explanations and the list of landmarks.

use landfall_proto::v1;
use url::Url;

use crate::gnp::{Coverage, Diversity, Embedding, LandmarkWorth};
use crate::grpc::landmark_choice::ExplainedLandmarks;
use crate::model::AgentId;
use crate::store::agents::Agent;
use crate::store::embeddings::landmarks::{ChosenBy, Landmark};
use crate::store::measurements::reach::UnreachedAgent;

use super::{count, duration, rtt};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::grpc) struct Election {
    pub(in crate::grpc) count: u32,
    pub(in crate::grpc) dimensions: Option<u32>,
}

impl From<v1::ElectLandmarksRequest> for Election {
    fn from(request: v1::ElectLandmarksRequest) -> Self {
        Self { count: request.count, dimensions: dimensions(request.dimensions) }
    }
}

/// In the protocol, 0 means that the scheduler chooses the number of dimensions.
pub(in crate::grpc) fn dimensions(asked: u32) -> Option<u32> {
    (asked > 0).then_some(asked)
}

/// The message about the landmarks, with their states, the dimensions and the embedding that uses
/// them.
pub(in crate::grpc) fn landmarks(
    landmarks: Vec<Landmark>,
    fleet: &[Agent],
    dimensions: usize,
    embedding: Option<&Embedding>,
) -> v1::ListLandmarksResponse {
    v1::ListLandmarksResponse {
        dimensions: count(dimensions),
        landmarks: landmarks.into_iter().map(|one| landmark(one, fleet)).collect(),
        epoch: embedding.map_or(0, |embedding| embedding.epoch().get()),
        fit_error: embedding.map_or(0.0, Embedding::fit_error),
        explanation: None,
    }
}

impl From<ExplainedLandmarks> for v1::ElectionExplanation {
    fn from(explained: ExplainedLandmarks) -> Self {
        let ExplainedLandmarks { explanation: told, names, unreached } = explained;
        let name = |agent: AgentId| names.get(&agent).cloned().unwrap_or_default();
        let coverage =
            |reach: Coverage| v1::Coverage { within: Some(duration(reach.within)), agents: count(reach.agents) };
        let worth = |worth: LandmarkWorth| v1::LandmarkWorth {
            name: name(worth.landmark),
            nearest_to: count(worth.nearest_to),
            adds: Some(duration(worth.adds)),
        };
        Self {
            others: count(told.others),
            coverage: told.coverage.into_iter().map(coverage).collect(),
            median: rtt(told.median),
            farthest_agent: told.farthest.map(|(agent, _)| name(agent)).unwrap_or_default(),
            farthest: rtt(told.farthest.map(|(_, rtt)| rtt)),
            uncovered: told.uncovered.into_iter().map(name).collect(),
            cities: Some(diversity(told.cities)),
            carriers: Some(diversity(told.carriers)),
            landmarks: told.landmarks.into_iter().map(worth).collect(),
            unreached: unreached.into_iter().map(Into::into).collect(),
        }
    }
}

fn diversity(kinds: Diversity) -> v1::Diversity {
    v1::Diversity { with: kinds.with, without: kinds.without }
}

impl From<UnreachedAgent> for v1::UnreachedAgent {
    fn from(unreached: UnreachedAgent) -> Self {
        let beacon_url = unreached.beacon_url.unwrap_or_default();
        let port = Url::parse(&beacon_url).ok().and_then(|url| url.port_or_known_default()).unwrap_or(0);
        let failure = unreached.failure.unwrap_or_default();
        Self { name: unreached.name, beacon_url, port: u32::from(port), failure }
    }
}

fn landmark(landmark: Landmark, fleet: &[Agent]) -> v1::Landmark {
    let agent = fleet.iter().find(|agent| agent.name == landmark.name);
    v1::Landmark {
        service: agent.map_or(v1::ServiceState::Unspecified, |agent| agent.service().into()).into(),
        name: landmark.name,
        city: landmark.city,
        carrier: landmark.carrier,
        connected: landmark.connected,
        reason: landmark.reason,
        elected: landmark.by == ChosenBy::Election,
        away_for: landmark.away_for.map(duration),
    }
}
