//! Reports: the results of a batch's tasks, and what each agent has done.
//!
//! Rows are read in pages, by key, through the index that keeps a batch's sites unique. So a report
//! needs constant memory, and the cost per row does not depend on the size of the batch.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{Connection, PgConnection};

use crate::model::{AgentId, BatchId, ChoiceReasons, ReasonKind, Rtt, SiteId, Strategy, TaskId, TaskState};
use crate::strategy::explain::ExplainedWait;

use super::Error;
use super::leases::outcomes::OutcomeKind;
use super::rows::Rows;
use super::tasks::waits;
use super::types::{Millis, Unsigned, whole};
pub use fleet::{AgentRow, agents};

pub(crate) mod capacity;
pub(crate) mod events;
pub(crate) mod explain;
mod fleet;
pub(crate) mod map;
pub(crate) mod minutes;
pub(crate) mod status;
pub(crate) mod throughput;

/// Selects tasks of a batch: their newest rounds that meet all of these conditions.
#[derive(Debug, Clone)]
pub struct TaskFilter {
    pub batch: BatchId,
    /// The task is in one of these states; empty: in any state.
    pub states: Vec<TaskState>,
    /// The task failed or was cancelled for one of these reasons; empty: no condition.
    pub reasons: Vec<ReasonKind>,
    /// The agent of the task's newest choice is one of these; `None`: any agent, or none.
    pub agents: Option<Vec<AgentId>>,
    /// The task entered its state at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// The task entered its state before this time.
    pub until: Option<DateTime<Utc>>,
}

impl TaskFilter {
    fn states(&self) -> Option<Vec<String>> {
        let names = self.states.iter().map(|state| state.name().to_owned());
        (!self.states.is_empty()).then(|| names.collect())
    }

    fn reasons(&self) -> Option<Vec<String>> {
        let names = self.reasons.iter().map(|reason| reason.name().to_owned());
        (!self.reasons.is_empty()).then(|| names.collect())
    }
}

/// A task and its result.
#[derive(Debug, Clone, PartialEq)]
pub struct AssignmentRow {
    pub task: TaskId,
    /// The row's position in the report.
    pub key: ListKey,
    pub round: u32,
    /// The site's name as submitted.
    pub site: String,
    pub origin: Option<String>,
    pub state: TaskState,
    pub state_since: DateTime<Utc>,
    pub reason: Option<String>,
    /// The agent's message about the end of the crawl.
    pub message: Option<String>,
    /// Why it waits, if it has no agent.
    pub waits: Option<ExplainedWait>,
    /// Why it failed or was cancelled.
    pub reason_kind: Option<ReasonKind>,
    /// The confidence with which the site is suspected to stand in several places; `None` if it is
    /// not suspected.
    pub anycast: Option<f64>,
    pub choice: Option<NewestChoice>,
    pub assignments: u32,
    pub outcome: Option<Outcome>,
    /// Number of samples, answered or lost, in the newest measurements of the site by each prober;
    /// shared measurements count as zero.
    pub probes: u64,
    /// Number of requests sent to measure the site, in all measurements.
    pub requests: u64,
    /// Number of those requests that were sent for confirmations.
    pub confirming_probes: u64,
}

/// The newest choice of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct NewestChoice {
    pub agent: String,
    pub city: String,
    pub carrier: String,
    pub strategy: Strategy,
    /// Why this agent was chosen, and why not by the batch's strategy if another one was applied.
    pub why: ChoiceReasons,
    /// The agent's rank among the candidates, from 1.
    pub rank: Option<u32>,
    pub predicted: Option<Rtt>,
    /// The round trip measured before the crawl.
    pub measured: Option<Rtt>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub kind: OutcomeKind,
    pub pages: u32,
    pub bytes: u64,
    pub errors: u32,
    /// When the crawl began, by the agent's clock.
    pub started_at: DateTime<Utc>,
    pub duration: Duration,
    /// The median round trip of the crawl.
    pub rtt: Option<Rtt>,
}

/// The key of a row, after which the next page continues. Rows are in the order in which their
/// sites were first stored; sites of the same list are in order of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ListKey {
    site: i64,
    round: u32,
}

/// For the rest of the transaction, makes the planner read rows in index order, so that a page of
/// results costs only its own rows. Otherwise the planner sorts all rows for every page if it
/// expects few rows.
async fn expect_order(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!("select set_config('enable_sort', 'off', true) as sort, set_config('jit', 'off', true) as jit")
        .one(conn)
        .await?;
    Ok(())
}

/// At most `limit` rows after `after`.
pub async fn assignments(
    conn: &mut PgConnection,
    wanted: &TaskFilter,
    after: ListKey,
    limit: i64,
) -> Result<Vec<AssignmentRow>, Error> {
    if wanted.agents.as_ref().is_some_and(Vec::is_empty) {
        return Ok(Vec::new());
    }
    let mut tx = conn.begin().await?;
    expect_order(&mut tx).await?;
    let (states, reasons) = (wanted.states(), wanted.reasons());
    let rows = sqlx::query_as!(
        TaskRow,
        r#"
        with page as materialized (
            select t.id, t.site_id, t.round, t.state, t.state_since, t.reason, t.reason_kind, t.assignment_id
            from tasks t
            where t.batch_id = $1 and (t.batch_id, t.site_id, t.round) > ($1, $2, $3) and t.retried_at is null
              and ($4::text[] is null or t.state::text = any($4))
              and ($5::text[] is null
                   or t.state::text in ('failed', 'cancelled') and coalesce(t.reason_kind::text, 'other') = any($5))
              and ($6::bigint[] is null or (select agent_id from assignments where id = t.assignment_id) = any($6))
              and ($7::timestamptz is null or t.state_since >= $7)
              and ($8::timestamptz is null or t.state_since < $8)
            order by t.batch_id, t.site_id, t.round
            limit $9
        )
        -- Each with a limit: the planner looks every row up by its key, whatever it thinks of the tables.
        select t.id as "id!", t.site_id as "site_id!", t.round as "round!", s.name as "site!", s.origin as "origin?",
               t.state as "state!", t.state_since as "state_since!",
               case when t.state in ('failed', 'cancelled') then t.reason end as "reason?", nullif(o.message, '') as "message?",
               case when t.state in ('failed', 'cancelled') then coalesce(t.reason_kind::text, 'other') end as "reason_kind?: ReasonKind",
               a.name as "agent?", a.city as "city?", a.carrier as "carrier?", c.strategy as "strategy?", c.detail as "detail?",
               (select confidence from site_verdicts where site_id = t.site_id and suspect) as "anycast?",
               array_position(c.candidates, c.agent_id) as "rank?: Unsigned<u32>",
               c.predicted_us[array_position(c.candidates, c.agent_id)] as "predicted_us?: Rtt",
               c.measured_us[array_position(c.candidates, c.agent_id)] as "measured_us?: Rtt",
               (select count(*) from assignments n where n.task_id = t.id) as "assignments!: Unsigned<u32>",
               o.kind as "kind?", o.pages as "pages?", o.bytes as "bytes?", o.errors as "errors?",
               o.started_at as "started_at?", o.duration_ms as "duration_ms?", o.rtt_us as "rtt_us?",
               measured.probes as "probes!: Unsigned<u64>",
               measured.requests
               + (select coalesce(sum(p.requests), 0)::bigint from resolved_addresses p where p.site_id = t.site_id) as "requests!: Unsigned<u64>",
               case when exists (select from confirmers where site_id = t.site_id) then
                   (select coalesce(sum(m.answered + m.lost), 0)
                    from confirming_measurements join site_measurements m using (site_id, prober_id)
                    where m.site_id = t.site_id and m.shared_from is null)
               else 0 end as "confirming_probes!: Unsigned<u64>"
        from page t
        cross join lateral (select name, origin from sites where id = t.site_id limit 1) s
        left join lateral (select * from assignments where id = t.assignment_id limit 1) c on true
        left join lateral (select name, city, carrier from agents where id = c.agent_id limit 1) a on true
        left join lateral (select * from outcomes where task_id = t.id limit 1) o on true
        cross join lateral (
            select coalesce(sum(answered + lost) filter (where shared_from is null), 0) as probes,
                   coalesce(sum(requests), 0)::bigint as requests
            from site_measurements where site_id = t.site_id
        ) measured
        "#,
        wanted.batch.get(),
        after.site,
        whole::<i32, _>(after.round),
        states.as_deref(),
        reasons.as_deref(),
        wanted.agents.as_ref() as _,
        wanted.since,
        wanted.until,
        limit,
    )
    .all(&mut tx)
    .await?;
    tx.commit().await?;
    let mut rows: Vec<AssignmentRow> = rows.into_iter().map(AssignmentRow::from).collect();
    let tasks: Vec<TaskId> = rows.iter().map(|row| row.task).collect();
    let mut waits = waits::of(conn, &tasks).await?;
    rows.iter_mut().for_each(|row| row.waits = waits.remove(&row.task));
    rows.sort_unstable_by_key(|row| row.key);
    Ok(rows)
}

/// Number of rows after `after`.
pub async fn count_behind(conn: &mut PgConnection, wanted: &TaskFilter, after: ListKey) -> Result<u64, Error> {
    let (states, reasons) = (wanted.states(), wanted.reasons());
    let count = sqlx::query_scalar!(
        r#"
        select count(*) as "count!: Unsigned<u64>"
        from tasks t
        where t.batch_id = $1 and t.retried_at is null and (t.site_id, t.round) > ($2, $3)
          and ($4::text[] is null or t.state::text = any($4))
          and ($5::text[] is null
               or t.state::text in ('failed', 'cancelled') and coalesce(t.reason_kind::text, 'other') = any($5))
          and ($6::bigint[] is null or (select agent_id from assignments where id = t.assignment_id) = any($6))
          and ($7::timestamptz is null or t.state_since >= $7)
          and ($8::timestamptz is null or t.state_since < $8)
        "#,
        wanted.batch.get(),
        after.site,
        whole::<i32, _>(after.round),
        states.as_deref(),
        reasons.as_deref(),
        wanted.agents.as_ref() as _,
        wanted.since,
        wanted.until,
    )
    .one(conn)
    .await?;
    Ok(count.0)
}

/// A row as stored. The columns of the assignment are null if there is none, and so are those of
/// the outcome.
struct TaskRow {
    id: TaskId,
    site_id: SiteId,
    round: u32,
    site: String,
    origin: Option<String>,
    state: TaskState,
    state_since: DateTime<Utc>,
    reason: Option<String>,
    message: Option<String>,
    reason_kind: Option<ReasonKind>,
    agent: Option<String>,
    city: Option<String>,
    carrier: Option<String>,
    strategy: Option<Strategy>,
    detail: Option<ChoiceReasons>,
    anycast: Option<f64>,
    rank: Option<Unsigned<u32>>,
    predicted_us: Option<Rtt>,
    measured_us: Option<Rtt>,
    assignments: Unsigned<u32>,
    kind: Option<OutcomeKind>,
    pages: Option<Unsigned<u32>>,
    bytes: Option<Unsigned<u64>>,
    errors: Option<Unsigned<u32>>,
    started_at: Option<DateTime<Utc>>,
    duration_ms: Option<Millis>,
    rtt_us: Option<Rtt>,
    probes: Unsigned<u64>,
    requests: Unsigned<u64>,
    confirming_probes: Unsigned<u64>,
}

impl TaskRow {
    fn choice(&mut self) -> Option<NewestChoice> {
        let (Some(agent), Some(city), Some(carrier), Some(strategy)) =
            (self.agent.take(), self.city.take(), self.carrier.take(), self.strategy)
        else {
            return None;
        };
        Some(NewestChoice {
            agent,
            city,
            carrier,
            strategy,
            why: self.detail.take().unwrap_or_default(),
            rank: self.rank.map(u32::from),
            predicted: self.predicted_us,
            measured: self.measured_us,
        })
    }

    fn outcome(&mut self) -> Option<Outcome> {
        let (Some(kind), Some(pages), Some(bytes), Some(errors), Some(started_at), Some(duration)) =
            (self.kind, self.pages, self.bytes, self.errors, self.started_at, self.duration_ms)
        else {
            return None;
        };
        Some(Outcome {
            kind,
            pages: pages.0,
            bytes: bytes.0,
            errors: errors.0,
            started_at,
            duration: duration.0,
            rtt: self.rtt_us,
        })
    }
}

impl From<TaskRow> for AssignmentRow {
    fn from(mut row: TaskRow) -> Self {
        let (choice, outcome) = (row.choice(), row.outcome());
        Self {
            task: row.id,
            key: ListKey { site: row.site_id.get(), round: row.round },
            round: row.round,
            site: row.site,
            origin: row.origin,
            state: row.state,
            state_since: row.state_since,
            reason: row.reason,
            message: row.message,
            waits: None,
            reason_kind: row.reason_kind,
            anycast: row.anycast,
            choice,
            assignments: row.assignments.0,
            outcome,
            probes: row.probes.0,
            requests: row.requests.0,
            confirming_probes: row.confirming_probes.0,
        }
    }
}
