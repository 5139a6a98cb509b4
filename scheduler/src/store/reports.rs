//! Reports: what became of a batch's tasks, and what each agent did.
//!
//! Rows are read in pages by key, so that a batch of any size is reported in constant memory.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, Rtt, TaskId};
use crate::strategy::LoadLevel;

use super::agents::{Agent, ServiceState};
use super::{Error, round_trip, unsigned};

/// Rows a page has at most.
pub const PAGE: i64 = 500;

/// One task and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct AssignmentRow {
    /// The task, the second part of the key.
    pub task: TaskId,
    /// Its round, from 1.
    pub round: u32,
    /// The site's name as submitted, the first part of the key.
    pub site: String,
    /// Where it was settled.
    pub origin: Option<String>,
    /// The state's name.
    pub state: String,
    /// Why it waits, fell back, failed or was cancelled.
    pub reason: Option<String>,
    /// The confidence that the site stands in several places, where that is suspected.
    pub anycast: Option<f64>,
    /// The newest choice.
    pub choice: Option<Choice>,
    /// Choices the task had.
    pub assignments: u32,
    /// How the crawl ended.
    pub outcome: Option<Outcome>,
    /// Probes of the site in the newest measurement of each prober, answered or lost; none of a shared one.
    pub probes: u64,
    /// Requests sent to it to measure it, over all measurements.
    pub requests: u64,
    /// Those of them that were spent on confirming.
    pub confirming_probes: u64,
}

/// The newest choice of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The agent.
    pub agent: String,
    /// Its city.
    pub city: String,
    /// Its carrier.
    pub carrier: String,
    /// The strategy that chose.
    pub strategy: String,
    /// How it was followed, where that needs saying.
    pub note: Option<String>,
    /// The agent's rank among the candidates, from 1.
    pub rank: Option<u32>,
    /// The predicted round trip.
    pub predicted: Option<Rtt>,
    /// The round trip measured before the crawl.
    pub measured: Option<Rtt>,
}

/// The end of a crawl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// complete, truncated, blocked or unreachable.
    pub kind: String,
    /// Pages fetched.
    pub pages: u32,
    /// Bytes fetched.
    pub bytes: u64,
    /// Requests that failed.
    pub errors: u32,
    /// When it began, by the agent's clock.
    pub started_at: DateTime<Utc>,
    /// How long it took.
    pub duration: Duration,
    /// The median round trip it saw.
    pub rtt: Option<Rtt>,
}

/// The key of a row: pages continue behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    site: String,
    task: TaskId,
}

impl AssignmentRow {
    /// Where the next page continues.
    pub fn key(&self) -> Key {
        Key { site: self.site.clone(), task: self.task }
    }
}

/// The next [`PAGE`] rows of a batch behind `after`, by site name: its tasks in their newest rounds.
///
/// # Errors
/// When the database fails or a row is inconsistent.
pub async fn assignments(
    conn: &mut PgConnection,
    batch: BatchId,
    after: Option<&Key>,
) -> Result<Vec<AssignmentRow>, Error> {
    // No site's name is empty, so the empty key precedes them all.
    let (site, task) = after.map_or(("", 0), |key| (key.site.as_str(), key.task.get()));
    let rows = sqlx::query_as!(
        Stored,
        r#"
        select t.id, t.round, s.name as site, s.origin, t.state::text as "state!",
               coalesce(t.reason, c.fallback_reason, nullif(o.message, '')) as reason,
               a.name as "agent?", a.city as "city?", a.carrier as "carrier?", c.strategy as "strategy?", c.note as "note?",
               v.confidence as "anycast?",
               array_position(c.candidates, c.agent_id) as rank,
               c.predicted_us[array_position(c.candidates, c.agent_id)] as predicted_us,
               c.measured_us[array_position(c.candidates, c.agent_id)] as measured_us,
               (select count(*) from assignments n where n.task_id = t.id) as "assignments!",
               o.kind as "kind?", o.pages as "pages?", o.bytes as "bytes?", o.errors as "errors?",
               o.started_at as "started_at?", o.duration_ms as "duration_ms?", o.rtt_us as "rtt_us?",
               (select coalesce(sum(m.answered + m.lost), 0) from site_measurements m
                where m.site_id = t.site_id and m.shared_from is null) as "probes!",
               (select coalesce(sum(m.requests), 0)::bigint from site_measurements m where m.site_id = t.site_id)
               + (select coalesce(sum(p.requests), 0)::bigint from site_sightings p where p.site_id = t.site_id) as "requests!",
               (select coalesce(sum(m.answered + m.lost), 0)
                from confirming_measurements join site_measurements m using (site_id, prober_id)
                where m.site_id = t.site_id and m.shared_from is null) as "confirming_probes!"
        from tasks t
        join sites s on s.id = t.site_id
        left join assignments c on c.id = t.assignment_id
        left join agents a on a.id = c.agent_id
        left join outcomes o on o.task_id = t.id
        left join site_verdicts v on v.site_id = t.site_id and v.suspect
        where t.batch_id = $1 and t.retried_at is null and (s.name, t.id) > ($2, $3)
        order by s.name, t.id
        limit $4
        "#,
        batch.get(),
        site,
        task,
        PAGE,
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter().map(AssignmentRow::try_from).collect()
}

/// A row as stored; what hangs on an assignment or an outcome is absent together with it.
struct Stored {
    id: i64,
    round: i32,
    site: String,
    origin: Option<String>,
    state: String,
    reason: Option<String>,
    agent: Option<String>,
    city: Option<String>,
    carrier: Option<String>,
    strategy: Option<String>,
    note: Option<String>,
    anycast: Option<f64>,
    rank: Option<i32>,
    predicted_us: Option<i64>,
    measured_us: Option<i64>,
    assignments: i64,
    kind: Option<String>,
    pages: Option<i32>,
    bytes: Option<i64>,
    errors: Option<i32>,
    started_at: Option<DateTime<Utc>>,
    duration_ms: Option<i64>,
    rtt_us: Option<i64>,
    probes: i64,
    requests: i64,
    confirming_probes: i64,
}

impl Stored {
    fn choice(&mut self) -> Result<Option<Choice>, Error> {
        let (Some(agent), Some(city), Some(carrier), Some(strategy)) =
            (self.agent.take(), self.city.take(), self.carrier.take(), self.strategy.take())
        else {
            return Ok(None);
        };
        Ok(Some(Choice {
            agent,
            city,
            carrier,
            strategy,
            note: self.note.take(),
            rank: self.rank.map(|rank| unsigned("assignments", "candidates", rank)).transpose()?,
            predicted: round_trip("assignments", "predicted_us", self.predicted_us)?,
            measured: round_trip("assignments", "measured_us", self.measured_us)?,
        }))
    }

    fn outcome(&mut self) -> Result<Option<Outcome>, Error> {
        const TABLE: &str = "outcomes";
        let (Some(kind), Some(pages), Some(bytes), Some(errors), Some(started_at), Some(millis)) =
            (self.kind.take(), self.pages, self.bytes, self.errors, self.started_at, self.duration_ms)
        else {
            return Ok(None);
        };
        Ok(Some(Outcome {
            kind,
            pages: unsigned(TABLE, "pages", pages)?,
            bytes: unsigned(TABLE, "bytes", bytes)?,
            errors: unsigned(TABLE, "errors", errors)?,
            started_at,
            duration: Duration::from_millis(unsigned(TABLE, "duration_ms", millis)?),
            rtt: round_trip(TABLE, "rtt_us", self.rtt_us)?,
        }))
    }
}

impl TryFrom<Stored> for AssignmentRow {
    type Error = Error;

    fn try_from(mut row: Stored) -> Result<Self, Error> {
        let (choice, outcome) = (row.choice()?, row.outcome()?);
        Ok(Self {
            task: TaskId::new(row.id),
            round: unsigned("tasks", "round", row.round)?,
            site: row.site,
            origin: row.origin,
            state: row.state,
            reason: row.reason,
            anycast: row.anycast,
            choice,
            assignments: unsigned("assignments", "count", row.assignments)?,
            outcome,
            probes: unsigned("site_measurements", "answered", row.probes)?,
            requests: unsigned("site_measurements", "requests", row.requests)?,
            confirming_probes: unsigned("site_measurements", "answered", row.confirming_probes)?,
        })
    }
}

/// What one agent did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRow {
    /// The name.
    pub agent: String,
    /// The city.
    pub city: String,
    /// The carrier.
    pub carrier: String,
    /// Whether it is a landmark.
    pub landmark: bool,
    /// Whether a session is active, and its stream open.
    pub connected: bool,
    /// Whether it takes work.
    pub service: ServiceState,
    /// Tasks whose newest assignment is this agent.
    pub assigned: u64,
    /// Crawls ended complete.
    pub complete: u64,
    /// Crawls ended truncated.
    pub truncated: u64,
    /// Crawls ended otherwise.
    pub failed: u64,
    /// Pages fetched.
    pub pages: u64,
    /// Bytes fetched.
    pub bytes: u64,
    /// The mean of its crawls' median round trips.
    pub mean_rtt: Option<Rtt>,
    /// How full it is now, whatever the batch; `None` while it is away.
    pub level: Option<LoadLevel>,
}

/// Every agent and what it did, in one batch or in all, by name.
///
/// # Errors
/// When the database fails or a row is inconsistent.
pub async fn agents(conn: &mut PgConnection, batch: Option<BatchId>) -> Result<Vec<AgentRow>, Error> {
    let fleet = super::agents::list(conn).await?;
    let fleet: HashMap<AgentId, Agent> = fleet.into_iter().map(|agent| (agent.id, agent)).collect();
    let rows = sqlx::query!(
        r#"
        select a.id,
               coalesce(chosen.tasks, 0) as "assigned!",
               coalesce(crawled.complete, 0) as "complete!", coalesce(crawled.truncated, 0) as "truncated!",
               coalesce(crawled.failed, 0) as "failed!",
               coalesce(crawled.pages, 0) as "pages!", coalesce(crawled.bytes, 0) as "bytes!",
               crawled.mean_rtt_us as "mean_rtt_us?"
        from agents a
        left join (
            select c.agent_id, count(*) as tasks
            from tasks t join assignments c on c.id = t.assignment_id
            where $1::bigint is null or t.batch_id = $1
            group by c.agent_id
        ) chosen on chosen.agent_id = a.id
        left join (
            select o.agent_id,
                   count(*) filter (where o.kind = 'complete') as complete,
                   count(*) filter (where o.kind = 'truncated') as truncated,
                   count(*) filter (where o.kind not in ('complete', 'truncated')) as failed,
                   sum(o.pages)::bigint as pages,
                   -- An agent may report any number; the sum of a few need not fit.
                   least(sum(o.bytes), 9223372036854775807)::bigint as bytes,
                   ceil(avg(o.rtt_us))::bigint as mean_rtt_us
            from outcomes o join tasks t on t.id = o.task_id
            where $1::bigint is null or t.batch_id = $1
            group by o.agent_id
        ) crawled on crawled.agent_id = a.id
        order by a.name
        "#,
        batch.map(BatchId::get),
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .filter_map(|row| Some((fleet.get(&AgentId::new(row.id))?, row)))
        .map(|(agent, row)| {
            Ok(AgentRow {
                agent: agent.name.clone(),
                city: agent.city.clone(),
                carrier: agent.carrier.clone(),
                landmark: agent.landmark,
                connected: agent.connected && !agent.hung_up,
                service: agent.service(),
                assigned: unsigned("tasks", "count", row.assigned)?,
                complete: unsigned("outcomes", "count", row.complete)?,
                truncated: unsigned("outcomes", "count", row.truncated)?,
                failed: unsigned("outcomes", "count", row.failed)?,
                pages: unsigned("outcomes", "pages", row.pages)?,
                bytes: unsigned("outcomes", "bytes", row.bytes)?,
                mean_rtt: round_trip("outcomes", "rtt_us", row.mean_rtt_us)?,
                level: agent.level(),
            })
        })
        .collect()
}
