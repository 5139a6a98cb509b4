//! Lists agents, and shows what is known about one agent: its state, session, leases and refusals.

use landfall_proto::v1;
use tonic::Status;

use crate::Scheduler;
use crate::model::geo::Position;
use crate::store;
use crate::store::agents::refusals::{self, Count};
use crate::store::agents::sessions::{self, EndCause, NewestSession};
use crate::store::agents::{self, Agent, enrolments};
use crate::store::leases::{self, ActiveLease};
use crate::store::reports::events::{self, Event, Filter};
use crate::strategy::LoadLevel;

use super::convert::filters::Places;
use super::convert::timestamp;
use super::named;
use super::paging::first;

/// Maximum number of events shown with an agent.
const EVENTS_SHOWN: i64 = 20;

pub(super) async fn list(
    scheduler: &Scheduler,
    request: v1::ListAgentsRequest,
) -> Result<v1::ListAgentsResponse, Status> {
    let mut conn = store::acquire(&scheduler.pool).await?;
    let agents = agents::list(&mut conn).await?;
    let asked = &request;
    let places = Places::new(&asked.cities, &asked.carriers, &asked.countries);
    let wanted = agents.into_iter().filter(|agent| is_asked_for(agent, asked, &places));
    let open_enrolments = enrolments::open_tokens(&mut conn).await?;
    let (agents, more) = first(wanted.map(Into::into).collect(), asked.limit);
    Ok(v1::ListAgentsResponse { agents, open_enrolments, more })
}

pub(super) async fn show(
    scheduler: &Scheduler,
    request: v1::ShowAgentRequest,
) -> Result<v1::ShowAgentResponse, Status> {
    let v1::ShowAgentRequest { name } = request;
    let mut conn = store::acquire(&scheduler.pool).await?;
    let agent = named::former_agent(&mut conn, &name).await?;
    let session = sessions::newest(&mut conn, agent.id).await?;
    let held = leases::held(&mut conn, agent.id).await?;
    let refused = refusals::of_agent(&mut conn, agent.id).await?;
    let filter = Filter { agents: Some(vec![agent.id]), ..Filter::default() };
    let events = events::newest(&mut conn, &filter, EVENTS_SHOWN).await?;
    Ok(shown(agent, session, held, refused, events.events))
}

/// Whether an agent matches the filter of the request. `places` is part of this filter.
fn is_asked_for(agent: &Agent, asked: &v1::ListAgentsRequest, places: &Places) -> bool {
    let service = i32::from(v1::ServiceState::from(agent.service()));
    (asked.removed || agent.removed_at.is_none())
        && places.include(&agent.city, &agent.carrier, &agent.country)
        && asked.tags.iter().all(|tag| agent.tags.contains(tag))
        && (asked.services.is_empty() || asked.services.contains(&service))
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
fn shown(
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
