//! Lists and shows agents; tags, drains, resumes, trusts and removes them; and shows which agents
//! reach which agents' beacons.

use futures_util::FutureExt as _;
use landfall_proto::v1;
use landfall_proto::v1::measurement_failure::Reason;
use sqlx::PgConnection;
use tonic::Status;

use super::convert::{InvalidField, Places, rtt, timestamp};
use super::named;
use super::pages::Page;
use crate::Scheduler;
use crate::model::constraints;
use crate::model::geo::Position;
use crate::model::{AgentId, ServiceState};
use crate::store::Db;
use crate::store::agents::drain_remove_and_tag::{self, DrainError, DrainResult};
use crate::store::agents::refusals::{self, Count};
use crate::store::agents::sessions::EndCause;
use crate::store::agents::{self, Agent, AgentOutline, NewestSession, issued_tokens};
use crate::store::leases::{self, ActiveLease};
use crate::store::measurements::quarantines_and_contradictions;
use crate::store::measurements::reach::{self, ReachDirection, ReachFilter};
use crate::store::measurements::results_and_failures::Failure;
use crate::store::names::Noun;
use crate::store::reports::events::{self, Event, Filter};
use crate::strategy::LoadLevel;

/// Maximum number of events shown with an agent.
const EVENTS_SHOWN: i64 = 20;

pub(super) async fn list(
    scheduler: &Scheduler,
    request: v1::ListAgentsRequest,
) -> Result<v1::ListAgentsResponse, Status> {
    let asked = &request;
    let page = Page::<String>::of(asked)?;
    let places = Places::new(&asked.cities, &asked.carriers, &asked.countries);
    let mut conn = scheduler.operators.read("list agents").await?;
    let mut wanted = agents::outlines(&mut conn, page.after.as_deref()).await?;
    wanted.retain(|agent| is_asked_for(agent, asked, &places));
    let (more, next_page_token) = page.cut(&mut wanted, |agent| agent.name.clone());
    let ids: Vec<AgentId> = wanted.iter().map(|agent| agent.id).collect();
    let agents = agents::with_ids(&mut conn, &ids).await?.into_iter().map(Into::into).collect();
    let open_enrolments = issued_tokens::open_tokens(&mut conn).await?;
    Ok(v1::ListAgentsResponse { agents, open_enrolments, more, next_page_token })
}

pub(super) async fn show(
    scheduler: &Scheduler,
    request: v1::ShowAgentRequest,
) -> Result<v1::ShowAgentResponse, Status> {
    let v1::ShowAgentRequest { name } = request;
    let mut conn = scheduler.operators.read("show an agent").await?;
    let agent = named::former_agent(&mut conn, &name).await?;
    let session = agents::newest_session(&mut conn, agent.id).await?;
    let held = leases::held(&mut conn, agent.id).await?;
    let refused = refusals::of_agent(&mut conn, agent.id).await?;
    let filter = Filter { agents: Some(vec![agent.id]), ..Filter::default() };
    let events = events::newest(&mut conn, &filter, EVENTS_SHOWN).await?;
    Ok(shown(agent, session, held, refused, events.events))
}

/// Whether an agent matches the filter of the request. `places` is part of this filter.
fn is_asked_for(agent: &AgentOutline, asked: &v1::ListAgentsRequest, places: &Places) -> bool {
    let service = i32::from(v1::ServiceState::from(agent.service));
    (asked.removed || agent.service != ServiceState::Removed)
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

/// Stops giving new work to an agent.
pub(super) async fn drain(
    scheduler: &Scheduler,
    v1::DrainAgentRequest { name }: v1::DrainAgentRequest,
) -> Result<v1::DrainAgentResponse, Status> {
    let agent = name.as_str();
    let drained = scheduler
        .operators
        .tx("drain an agent", |tx| {
            async move {
                let drained = drain_remove_and_tag::drain(tx, agent).await;
                known(tx, drained).await
            }
            .boxed()
        })
        .await?;
    tracing::info!(agent.name = name, drained.withdrawn, drained.leases, "an agent is draining");
    scheduler.wakes.assign.notify_one();
    Ok(drained.into())
}

/// Gives work to a draining agent again.
pub(super) async fn resume(
    scheduler: &Scheduler,
    v1::ResumeAgentRequest { name }: v1::ResumeAgentRequest,
) -> Result<v1::ResumeAgentResponse, Status> {
    let agent = name.as_str();
    let resumed = scheduler
        .operators
        .tx("resume an agent", |tx| {
            async move {
                let resumed = drain_remove_and_tag::resume(tx, agent).await;
                known(tx, resumed).await
            }
            .boxed()
        })
        .await?;
    tracing::info!(agent.name = name, resumed, "an agent is in service again");
    scheduler.wakes.assign.notify_one();
    Ok(v1::ResumeAgentResponse { resumed })
}

/// Removes an agent, whose tasks go to other agents.
pub(super) async fn remove(
    scheduler: &Scheduler,
    v1::RemoveAgentRequest { name, force }: v1::RemoveAgentRequest,
) -> Result<v1::RemoveAgentResponse, Status> {
    let (agent, max_crashes) = (name.as_str(), scheduler.config.lease.max_crashes);
    let removed = scheduler
        .operators
        .tx("remove an agent", |tx| {
            async move {
                let removed = drain_remove_and_tag::remove(tx, agent, force, max_crashes).await;
                known(tx, removed).await
            }
            .boxed()
        })
        .await?;
    tracing::info!(agent.name = name, removed.withdrawn, removed.leases, "an agent was removed");
    let wakes = &scheduler.wakes;
    for wake in [&wakes.assign, &wakes.measure, &wakes.landmarks, &wakes.fit] {
        wake.notify_one();
    }
    Ok(removed.into())
}

/// Ends the quarantine of an agent's measurements.
pub(super) async fn trust(
    scheduler: &Scheduler,
    v1::TrustAgentRequest { name }: v1::TrustAgentRequest,
) -> Result<v1::TrustAgentResponse, Status> {
    let agent = name.as_str();
    let released = scheduler
        .operators
        .tx("trust an agent", |tx| {
            async move {
                let agent = named::exact_agent(tx, agent).await?;
                Ok::<_, Status>(quarantines_and_contradictions::release(tx, agent).await?)
            }
            .boxed()
        })
        .await?;
    scheduler.wakes.fit.notify_one();
    scheduler.wakes.measure.notify_one();
    Ok(v1::TrustAgentResponse { released })
}

/// Adds suggestions to the error for an unknown agent.
async fn known<T>(conn: &mut PgConnection, changed: Result<T, DrainError>) -> Result<T, Status> {
    match changed {
        Err(DrainError::Unknown(name)) => {
            let unknown = DrainError::Unknown(name.clone()).into();
            Err(named::inexact(conn, Noun::Agent, &name, unknown).await)
        }
        changed => Ok(changed?),
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

/// Adds and removes tags of an agent.
pub(super) async fn tag(
    scheduler: &Scheduler,
    v1::TagAgentRequest { name, add, remove }: v1::TagAgentRequest,
) -> Result<v1::TagAgentResponse, Status> {
    let tags = change_tags(&scheduler.operators, &name, &add, &remove).await?;
    tracing::info!(agent.name = name, tags = tags.join(" "), "an agent was tagged");
    scheduler.wakes.assign.notify_one();
    Ok(v1::TagAgentResponse { tags })
}

/// Adds and removes tags of the agent with this name. Returns the agent's new tags.
async fn change_tags(db: &Db, name: &str, add: &[String], remove: &[String]) -> Result<Vec<String>, Status> {
    let add = tags("add", add)?;
    let remove = tags("remove", remove)?;
    let (add, remove) = (&add, &remove);
    db.tx("tag an agent", |tx| {
        async move {
            let found = agents::lock_tags(tx, name).await?;
            let Some((agent, tags)) = found else { return Err(named::no_agent(tx, name).await) };
            let tags = retagged(tags, add.clone(), remove)?;
            agents::set_tags(tx, agent, &tags).await?;
            Ok(tags)
        }
        .boxed()
    })
    .await
}

/// Adds the tags `add` and removes the tags `remove`; rejects a tag that is in both.
fn retagged(mut tags: Vec<String>, add: Vec<String>, remove: &[String]) -> Result<Vec<String>, InvalidField> {
    if let Some(both) = add.iter().find(|tag| remove.contains(tag)) {
        return Err(InvalidField::new("remove", format!("the tag '{both}' cannot be both added and removed")));
    }
    tags.retain(|tag| !remove.contains(tag));
    tags.extend(add);
    self::tags("add", &tags)
}

/// Parses an agent's tags into their canonical form.
pub(super) fn tags(field: &str, asked: &[String]) -> Result<Vec<String>, InvalidField> {
    constraints::tags(asked).map_err(|error| InvalidField::new(field, error.problem))
}

pub(super) async fn show_reach(
    scheduler: &Scheduler,
    request: v1::ShowReachRequest,
) -> Result<v1::ShowReachResponse, Status> {
    let v1::ShowReachRequest { agent, other } = request;
    if agent == other {
        return Err(itself("other", &agent).into());
    }
    let config = &scheduler.config.measure;
    let mut conn = scheduler.operators.read("show reach").await?;
    let agent = named::agent(&mut conn, &agent).await?;
    let other = if other.is_empty() { None } else { Some(named::agent(&mut conn, &other).await?) };
    if other.as_ref() == Some(&agent) {
        return Err(itself("other", &agent.name).into());
    }
    let asked = ReachFilter {
        agent: agent.id,
        other: other.map(|other| other.id),
        max_age: config.mesh_max_age,
        max_peers: config.max_mesh_peers,
    };
    let mut ways = reach::ways(&mut conn, &asked).await?;
    if asked.other.is_some() {
        ways.sort_by_key(|way| way.prober != agent.name);
    }
    Ok(v1::ShowReachResponse { ways: ways.into_iter().map(Into::into).collect() })
}

/// The error for a request that must name two different agents but names the same agent twice.
fn itself(field: &str, name: &str) -> InvalidField {
    InvalidField::new(field, format!("{name} is named twice: name two different agents"))
}

impl From<ReachDirection> for v1::Way {
    fn from(way: ReachDirection) -> Self {
        let (trip, reached_at) = way.reached.unzip();
        let (failure, failed_at) = way.failed.unzip();
        let said = |Failure { cause, said }: Failure| v1::MeasurementFailure {
            reason: Reason::from(cause).into(),
            message: said,
        };
        Self {
            prober: way.prober,
            target: way.target,
            beacon_url: way.beacon_url.unwrap_or_default(),
            state: v1::WayState::from(way.reachability).into(),
            rtt: rtt(trip),
            reached_at: reached_at.map(timestamp),
            failure: failure.map(said),
            failed_at: failed_at.map(timestamp),
            next_at: way.next_at.map(timestamp),
        }
    }
}
