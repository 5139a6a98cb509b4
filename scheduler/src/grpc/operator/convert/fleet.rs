//! Converts and validates the messages of the gRPC service for agents and landmarks. Messages about
//! enrolments and landmarks are converted in other modules.

use std::time::Duration;

use landfall_proto::v1;

use crate::machine::secret::SecretHash;
use crate::model::constraints;
use crate::model::contact_url::ContactUrl;
use crate::model::geo::Position;
use crate::store::agents::Agent;
use crate::store::agents::drains::DrainResult;
use crate::store::agents::refusals::Count;
use crate::store::agents::sessions::{EndCause, NewestSession};
use crate::store::leases::ActiveLease;
use crate::store::reports::events::Event;
use crate::strategy::LoadLevel;

use super::{InvalidField, bounded, timestamp};

/// Maximum time that the operator's former token stays valid after its replacement.
const LONGEST_GRACE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Parses an agent's tags into their canonical form.
pub(in crate::grpc) fn tags(field: &str, asked: &[String]) -> Result<Vec<String>, InvalidField> {
    constraints::tags(asked).map_err(|error| InvalidField::new(field, error.problem))
}

/// The error for a request that must name two different agents but names the same agent twice.
pub(in crate::grpc) fn itself(field: &str, name: &str) -> InvalidField {
    InvalidField::new(field, format!("{name} is named twice: name two different agents"))
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
