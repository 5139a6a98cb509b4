//! Lists and shows agents with their state, load and position, and an agent's newest session; finds
//! an agent by its name; and reads where all agents are.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::gnp::Nominee;
use crate::model::geo::Position;
use crate::model::{AgentId, Incarnation, SessionId, words};
use crate::model::{ServiceFacts, ServiceState};
use crate::store::agents::refusals::Refusal;
use crate::store::agents::sessions::EndCause;
use crate::store::assignments::agents_and_loads::ReportedLoad;
use crate::store::rows_and_errors::Rows;
use crate::store::types::Unsigned;
use crate::store::{Error, position};
use crate::strategy::LoadLevel;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agent {
    pub id: AgentId,
    /// The name, which is unique in the fleet.
    pub name: String,
    pub city: String,
    pub carrier: String,
    /// The country's ISO 3166-1 alpha-2 code; empty when unknown.
    pub country: String,
    pub capacity: u32,
    pub leased: u32,
    /// Number of tasks assigned to the agent but not leased.
    pub waiting: u32,
    /// The load that the agent's last heartbeat reported; `None` before the first heartbeat, and
    /// while the agent has no session.
    pub said: Option<ReportedLoad>,
    pub connected: bool,
    pub landmark: bool,
    /// Number of other agents that have measured this agent's beacon.
    pub reached_by: u32,
    /// When the agent's last heartbeat arrived, in any session.
    pub seen_at: Option<DateTime<Utc>>,
    /// The version of the agent's program; empty until the agent first connects.
    pub version: String,
    /// `None` if the agent runs no beacon.
    pub beacon_url: Option<String>,
    /// `None` if the operator gave no position.
    pub position: Option<Position>,
    pub tags: Vec<String>,
    /// Why the agent's measurements are ignored; `None` while the agent is trusted.
    pub quarantined: Option<String>,
    /// `None` if the agent is not draining.
    pub draining_since: Option<DateTime<Utc>>,
    pub removed_at: Option<DateTime<Utc>>,
    /// Why the agent gets no new lease: the reason that the agent reported, or its disconnection.
    /// `None` while it gets leases.
    pub paused: Option<String>,
    /// Whether the agent's stream has ended, but its session has not expired yet.
    pub disconnected: bool,
    /// When a second process with the agent's credential was last refused; `None` if that did not
    /// happen in the last two minutes.
    pub twin_at: Option<DateTime<Utc>>,
}

impl From<Agent> for Nominee {
    fn from(agent: Agent) -> Self {
        Self { agent: agent.id, city: agent.city, carrier: agent.carrier }
    }
}

/// All agents, sorted by name, including removed ones.
pub async fn list(conn: &mut PgConnection) -> Result<Vec<Agent>, Error> {
    read(conn, None, None).await
}

/// These agents, sorted by name, even if they have been removed.
pub async fn with_ids(conn: &mut PgConnection, ids: &[AgentId]) -> Result<Vec<Agent>, Error> {
    read(conn, None, Some(ids)).await
}

/// The agent with this name, even if it has been removed.
pub async fn show(conn: &mut PgConnection, name: &str) -> Result<Option<Agent>, Error> {
    Ok(read(conn, Some(name), None).await?.pop())
}

async fn read(conn: &mut PgConnection, name: Option<&str>, ids: Option<&[AgentId]>) -> Result<Vec<Agent>, Error> {
    let rows = sqlx::query!(
        r#"
        select a.id, a.name, a.city, a.carrier, a.country, a.capacity, a.version, a.beacon_url,
               a.latitude, a.longitude, a.tags, a.draining_since, a.removed_at,
               (select q.reason from quarantines q where q.agent_id = a.id and q.released_at is null) as quarantined,
               (select count(*) from leases l where l.agent_id = a.id and l.state = 'active') as "leased!: Unsigned<u32>",
               (select count(*) from tasks t where t.agent_id = a.id and t.state = 'assigned') as "waiting!: Unsigned<u32>",
               s.free_slots as "free_slots?", s.crawls as "crawls?", s.outcomes_waiting as "outcomes_waiting?",
               s.id is not null as "connected!",
               case when s.disconnected_at is null then s.paused else 'disconnected: it has until its session expires to come back' end
                   as "paused?",
               s.disconnected_at is not null as "disconnected!",
               exists (select from landmarks m where m.agent_id = a.id) as "landmark!",
               coalesce(reached.times, 0) as "reached_by!: Unsigned<u32>",
               (select max(s.renewed_at) from sessions s where s.agent_id = a.id) as seen_at,
               -- A second process of the agent connects again every few seconds. If the last
               -- refusal is older, this process is gone.
               (select r.last_at from refusals r
                where r.agent_id = a.id and r.kind = $2 and r.last_at > now() - interval '2 minutes') as twin_at
        from agents a
        left join sessions s on s.agent_id = a.id and s.state = 'active'
        -- Scans the mesh once for all agents. A subquery would scan it once per agent.
        left join (
            select agent_id, count(*) as times from mesh_measurements
            where rtt_us is not null and ($3::bigint[] is null or agent_id = any($3))
            group by agent_id
        ) reached on reached.agent_id = a.id
        where ($1::text is null or a.name = $1) and ($3 is null or a.id = any($3))
        order by a.name
        "#,
        name,
        Refusal::Twin,
        ids as _,
    )
    .all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            Ok(Agent {
                id: row.id,
                name: row.name,
                city: row.city,
                carrier: row.carrier,
                country: row.country,
                capacity: row.capacity.0,
                leased: row.leased.0,
                waiting: row.waiting.0,
                said: said(row.free_slots, row.crawls, row.outcomes_waiting),
                connected: row.connected,
                landmark: row.landmark,
                reached_by: row.reached_by.0,
                seen_at: row.seen_at,
                version: row.version,
                beacon_url: row.beacon_url,
                position: position("agents", row.latitude, row.longitude)?,
                tags: row.tags,
                quarantined: row.quarantined,
                draining_since: row.draining_since,
                removed_at: row.removed_at,
                paused: row.paused,
                disconnected: row.disconnected,
                twin_at: row.twin_at,
            })
        })
        .collect()
}

/// What narrows a list of agents. Unlike an [`Agent`], it needs no counts of tasks and measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentOutline {
    pub id: AgentId,
    pub name: String,
    pub city: String,
    pub carrier: String,
    pub country: String,
    pub tags: Vec<String>,
    pub service: ServiceState,
}

/// The outlines of all agents whose names follow `after`, sorted by name, including removed ones.
pub async fn outlines(conn: &mut PgConnection, after: Option<&str>) -> Result<Vec<AgentOutline>, Error> {
    let rows = sqlx::query!(
        r#"
        select a.id, a.name, a.city, a.carrier, a.country, a.tags,
               a.removed_at is not null as "removed!", a.draining_since is not null as "draining!",
               exists (select from sessions o where o.agent_id = a.id) as "known!",
               s.id is not null and s.disconnected_at is null as "connected!",
               s.paused is not null or s.disconnected_at is not null as "paused!",
               exists (select from leases l where l.agent_id = a.id and l.state = 'active') as "leased!",
               exists (select from quarantines q where q.agent_id = a.id and q.released_at is null) as "quarantined!"
        from agents a
        left join sessions s on s.agent_id = a.id and s.state = 'active'
        where $1::text is null or a.name > $1
        order by a.name
        "#,
        after,
    );
    let outlines = rows.all(conn).await?.into_iter().map(|row| {
        let facts = ServiceFacts {
            removed: row.removed,
            draining: row.draining,
            leased: row.leased,
            known: row.known,
            connected: row.connected,
            paused: row.paused,
            quarantined: row.quarantined,
        };
        let (name, city, carrier, country) = (row.name, row.city, row.carrier, row.country);
        AgentOutline { id: row.id, name, city, carrier, country, tags: row.tags, service: facts.state() }
    });
    Ok(outlines.collect())
}

fn said(
    free_slots: Option<Unsigned<u32>>,
    crawls: Option<Unsigned<u32>>,
    outcomes_waiting: Option<Unsigned<u32>>,
) -> Option<ReportedLoad> {
    Some(ReportedLoad { free_slots: free_slots?.0, crawls: crawls?.0, outcomes_waiting: outcomes_waiting?.0 })
}

impl Agent {
    /// Whether the agent gets new work, and if not, why.
    pub const fn service(&self) -> ServiceState {
        let facts = ServiceFacts {
            removed: self.removed_at.is_some(),
            draining: self.draining_since.is_some(),
            leased: self.leased > 0,
            known: self.seen_at.is_some(),
            connected: self.connected && !self.disconnected,
            paused: self.paused.is_some(),
            quarantined: self.quarantined.is_some(),
        };
        facts.state()
    }

    /// The load level: the number of assigned and leased tasks, plus the number of slots that the
    /// agent reports as unusable, minus the number of all slots. `None` while the agent has no
    /// session.
    pub fn level(&self) -> Option<LoadLevel> {
        let withheld =
            self.said.map_or(0, |said| self.capacity.saturating_sub(said.crawls.saturating_add(said.free_slots)));
        let load = self.waiting.saturating_add(self.leased).saturating_add(withheld);
        self.connected.then(|| LoadLevel::of(load, self.capacity))
    }
}

words!(
    SessionState {
        /// The agent still renews the session.
        Active = "active",
        /// The session was not renewed in time.
        Expired = "expired",
        /// The session ended for another reason.
        Closed = "closed",
    }
);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewestSession {
    pub session: SessionId,
    pub incarnation: Incarnation,
    pub state: SessionState,
    pub opened_at: DateTime<Utc>,
    pub renewed_at: DateTime<Utc>,
    /// When the session expires unless it is renewed.
    pub expires_at: DateTime<Utc>,
    pub end_cause: Option<EndCause>,
}

/// The agent's newest session; `None` if the agent has never connected.
pub async fn newest_session(conn: &mut PgConnection, agent: AgentId) -> Result<Option<NewestSession>, Error> {
    let newest = sqlx::query_as!(
        NewestSession,
        r#"
        select id as session, incarnation, state, opened_at, renewed_at, expires_at, end_cause
        from sessions where agent_id = $1 order by incarnation desc limit 1
        "#,
        agent.get(),
    );
    newest.optional(conn).await
}

/// The agent with this name, unless it has been removed.
pub async fn by_name(conn: &mut PgConnection, name: &str) -> Result<Option<AgentId>, Error> {
    sqlx::query_scalar!("select id from agents where name = $1 and removed_at is null", name).optional(conn).await
}

/// An agent's name, and where the agent is.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentPlace {
    pub name: String,
    pub city: String,
    pub carrier: String,
    pub country: String,
    pub position: Option<Position>,
}

/// The places of all agents, including removed ones.
pub async fn places(conn: &mut PgConnection) -> Result<BTreeMap<AgentId, AgentPlace>, Error> {
    let agents = sqlx::query!("select id, name, city, carrier, country, latitude, longitude from agents");
    let places = agents.all(conn).await?.into_iter().map(|row| {
        let position = position("agents", row.latitude, row.longitude)?;
        let (name, city, carrier, country) = (row.name, row.city, row.carrier, row.country);
        Ok((row.id, AgentPlace { name, city, carrier, country, position }))
    });
    places.collect()
}
