//! Converts and validates the messages of the gRPC service for agents and landmarks.

use std::fmt::Display;
use std::time::Duration;

use landfall_proto::v1;
use url::Url;

use crate::app::secret::SecretHash;
use crate::gnp::{Coverage, Diversity, Embedding, LandmarkWorth, Position, PositionError};
use crate::grpc::Identity;
use crate::grpc::landmark_choice::ExplainedLandmarks;
use crate::model::contact::ContactUrl;
use crate::model::{AgentId, constraints, naming};
use crate::store::agents::Agent;
use crate::store::agents::drains::DrainResult;
use crate::store::agents::enrolments::{AgentRequest, Enrolment, Name, Token};
use crate::store::agents::refusals::Count;
use crate::store::agents::sessions::{EndCause, NewestSession};
use crate::store::embeddings::landmarks::{ChosenBy, Landmark};
use crate::store::leases::ActiveLease;
use crate::store::measurements::reach::UnreachedAgent;
use crate::store::reports::events::Event;
use crate::strategy::LoadLevel;

use super::{InvalidField, agent_name, bounded, count, duration, line, rtt, timestamp};

/// Default validity of an enrolment token.
const DEFAULT_VALIDITY: Duration = Duration::from_secs(24 * 3600);
/// Minimum and maximum of a requested validity.
const SHORTEST_VALIDITY: Duration = Duration::from_secs(600);
const LONGEST_VALIDITY: Duration = Duration::from_secs(30 * 24 * 3600);
/// Maximum time that the operator's former token stays valid after its replacement.
const LONGEST_GRACE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Default number of dimensions of the embedding, if there are enough landmarks.
const DEFAULT_DIMENSIONS: u32 = 8;

impl TryFrom<v1::CreateEnrolmentRequest> for AgentRequest {
    type Error = InvalidField;

    fn try_from(request: v1::CreateEnrolmentRequest) -> Result<Self, InvalidField> {
        let valid_for = bounded("valid_for", request.valid_for, SHORTEST_VALIDITY, LONGEST_VALIDITY)?;
        let (city, carrier) = (line("city", &request.city)?, line("carrier", &request.carrier)?);
        let name = match request.name {
            empty if empty.is_empty() => {
                Name::Formed(naming::formed(&city, &carrier).map_err(InvalidField::of("name"))?)
            }
            given => Name::Given(agent_name("name", &given)?),
        };
        Ok(Self {
            name,
            city,
            carrier,
            country: country(&request.country)?,
            position: position(request.latitude, request.longitude)?,
            tags: tags("tags", &request.tags)?,
            valid_for: valid_for.unwrap_or(DEFAULT_VALIDITY),
            replaces: request.replaces,
        })
    }
}

/// Parses an agent's tags into their canonical form.
pub(in crate::grpc) fn tags(field: &str, asked: &[String]) -> Result<Vec<String>, InvalidField> {
    constraints::tags(asked).map_err(|error| InvalidField::new(field, error.problem))
}

/// Adds the tags `add` and removes the tags `remove`; rejects a tag that is in both.
pub(in crate::grpc) fn retagged(
    mut tags: Vec<String>,
    add: Vec<String>,
    remove: &[String],
) -> Result<Vec<String>, InvalidField> {
    if let Some(both) = add.iter().find(|tag| remove.contains(tag)) {
        return Err(InvalidField::new("remove", format!("the tag '{both}' cannot be both added and removed")));
    }
    tags.retain(|tag| !remove.contains(tag));
    tags.extend(add);
    self::tags("add", &tags)
}

fn country(text: &str) -> Result<String, InvalidField> {
    let country = text.trim().to_ascii_uppercase();
    if country.is_empty() || (country.len() == 2 && country.bytes().all(|byte| byte.is_ascii_uppercase())) {
        return Ok(country);
    }
    Err(InvalidField::new("country", "not a two-letter country code (ISO 3166-1)"))
}

fn position(latitude: Option<f64>, longitude: Option<f64>) -> Result<Option<Position>, InvalidField> {
    Position::from_parts(latitude, longitude).map_err(|problem| {
        let field = match problem {
            PositionError::Latitude => "latitude",
            PositionError::Longitude => "longitude",
            PositionError::Half if latitude.is_none() => "latitude",
            PositionError::Half => "longitude",
        };
        InvalidField::new(field, problem.to_string())
    })
}

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

/// The error for a request that must name two different agents but names one agent twice.
pub(in crate::grpc) fn itself(field: &str, name: &str) -> InvalidField {
    InvalidField::new(field, format!("{name} is named twice: name two different agents"))
}

/// In the protocol, 0 means that the scheduler chooses the number of dimensions.
pub(in crate::grpc) fn dimensions(asked: u32) -> Option<u32> {
    (asked > 0).then_some(asked)
}

/// Parses the hash of the operator's new token, and the time for which the former token stays
/// valid.
pub(in crate::grpc) fn new_token(
    request: &v1::ReplaceOperatorTokenRequest,
) -> Result<(SecretHash, Duration), InvalidField> {
    let hash = SecretHash::from_stored(&request.token_sha256);
    let hash = hash.ok_or_else(|| InvalidField::new("token_sha256", "not 32 bytes"))?;
    let grace = bounded("grace", request.grace, Duration::ZERO, LONGEST_GRACE)?;
    Ok((hash, grace.unwrap_or_default()))
}

pub(in crate::grpc) fn contact_url(request: &v1::SetContactUrlRequest) -> Result<ContactUrl, InvalidField> {
    request.contact_url.parse().map_err(InvalidField::of("contact_url"))
}

/// Parses several enrolment requests. Returns the valid requests with their index, and the problems
/// of the invalid requests.
pub(in crate::grpc) fn several(
    asked: Vec<v1::CreateEnrolmentRequest>,
) -> (Vec<usize>, Vec<AgentRequest>, Vec<v1::EnrolmentProblem>) {
    let (mut places, mut wanted, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for (index, one) in asked.into_iter().enumerate() {
        match AgentRequest::try_from(one) {
            Ok(one) => {
                places.push(index);
                wanted.push(one);
            }
            Err(problem) => problems.push(self::problem(index, &problem)),
        }
    }
    (places, wanted, problems)
}

/// The message about a problem in one of several requests.
pub(in crate::grpc) fn problem(index: usize, problem: &impl Display) -> v1::EnrolmentProblem {
    v1::EnrolmentProblem { index: count(index), problem: problem.to_string() }
}

impl From<Token> for v1::Enrolment {
    fn from(token: Token) -> Self {
        Self {
            enrolment_id: token.id,
            name: token.name,
            city: token.city,
            carrier: token.carrier,
            country: token.country,
            state: v1::EnrolmentState::from(token.state).into(),
            made_at: Some(timestamp(token.made_at)),
            expires_at: Some(timestamp(token.expires_at)),
            ended_at: token.ended_at.map(timestamp),
            replaces: token.replaces,
        }
    }
}

/// The message for a new token. It includes the data with which the agent finds and recognises the
/// scheduler.
pub(in crate::grpc) fn enrolment(
    enrolment: Enrolment,
    identity: &Identity,
    contact_url: Option<String>,
    others: Vec<String>,
) -> v1::CreateEnrolmentResponse {
    v1::CreateEnrolmentResponse {
        enrolment_id: enrolment.id,
        replaces: enrolment.replaces,
        in_use: enrolment.in_use,
        token: enrolment.token.reveal().to_owned(),
        name: enrolment.name,
        expires_at: Some(timestamp(enrolment.expires_at)),
        ca_fingerprint: identity.ca_fingerprint.clone().unwrap_or_default(),
        scheduler_url: identity.scheduler_url.clone(),
        contact_url: contact_url.unwrap_or_default(),
        other_scheduler_urls: others,
    }
}

impl From<Agent> for v1::Agent {
    fn from(agent: Agent) -> Self {
        let load_level = agent.level().map(LoadLevel::get);
        let service = v1::ServiceState::from(agent.service());
        Self {
            agent_id: agent.id.get(),
            name: agent.name,
            city: agent.city,
            carrier: agent.carrier,
            country: agent.country,
            capacity: agent.capacity,
            leased: agent.leased,
            connected: agent.connected && !agent.disconnected,
            landmark: agent.landmark,
            reached_by: agent.reached_by,
            seen_at: agent.seen_at.map(timestamp),
            version: agent.version,
            beacon_url: agent.beacon_url.unwrap_or_default(),
            latitude: agent.position.map(Position::latitude),
            longitude: agent.position.map(Position::longitude),
            quarantined: agent.quarantined.unwrap_or_default(),
            draining_since: agent.draining_since.map(timestamp),
            removed_at: agent.removed_at.map(timestamp),
            paused: agent.paused.unwrap_or_default(),
            load_level,
            waiting: agent.waiting,
            free_slots: agent.said.map(|said| said.free_slots),
            crawls: agent.said.map(|said| said.crawls),
            outcomes_waiting: agent.said.map(|said| said.outcomes_waiting),
            tags: agent.tags,
            service: service.into(),
            twin_at: agent.twin_at.map(timestamp),
        }
    }
}

/// The message with all stored facts about an agent.
pub(in crate::grpc) fn shown(
    agent: Agent,
    session: Option<NewestSession>,
    held: Vec<ActiveLease>,
    refused: Vec<Count>,
    events: Vec<Event>,
) -> v1::ShowAgentResponse {
    v1::ShowAgentResponse {
        agent: Some(agent.into()),
        session: session.map(Into::into),
        leases: held.into_iter().map(Into::into).collect(),
        refusals: refused.into_iter().map(Into::into).collect(),
        events: events.into_iter().map(Into::into).collect(),
    }
}

impl From<NewestSession> for v1::AgentSession {
    fn from(session: NewestSession) -> Self {
        Self {
            session_id: session.session.get(),
            incarnation: session.incarnation.get(),
            state: session.state.name().to_owned(),
            opened_at: Some(timestamp(session.opened_at)),
            renewed_at: Some(timestamp(session.renewed_at)),
            expires_at: Some(timestamp(session.expires_at)),
            end_cause: session.end_cause.map_or("", EndCause::name).to_owned(),
        }
    }
}

impl From<ActiveLease> for v1::AgentLease {
    fn from(held: ActiveLease) -> Self {
        Self {
            site: held.site,
            batch: held.batch,
            token: held.token.get(),
            granted_at: Some(timestamp(held.granted_at)),
        }
    }
}

impl From<Count> for v1::AgentRefusal {
    fn from(count: Count) -> Self {
        Self {
            kind: count.kind.name().to_owned(),
            times: count.times,
            first_at: Some(timestamp(count.first_at)),
            last_at: Some(timestamp(count.last_at)),
            detail: count.detail,
        }
    }
}

impl From<DrainResult> for v1::DrainAgentResponse {
    fn from(DrainResult { withdrawn, leases, before }: DrainResult) -> Self {
        Self { withdrawn, leases, before }
    }
}

impl From<DrainResult> for v1::RemoveAgentResponse {
    fn from(DrainResult { withdrawn, leases, before }: DrainResult) -> Self {
        Self { withdrawn, leases, before }
    }
}

/// The message about the landmarks, with their states and the embedding that uses them.
pub(in crate::grpc) fn landmarks(
    landmarks: Vec<Landmark>,
    fleet: &[Agent],
    dimensions: Option<u32>,
    embedding: Option<&Embedding>,
) -> v1::ListLandmarksResponse {
    let most = count(landmarks.len().saturating_sub(1));
    v1::ListLandmarksResponse {
        dimensions: dimensions.unwrap_or(DEFAULT_DIMENSIONS).min(most),
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
