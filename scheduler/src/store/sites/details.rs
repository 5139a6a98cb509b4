//! The details of a site as operators see them: its newest tasks, each with its outcome, progress
//! and candidates, its measurements and its placement.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::gnp::Placement;
use crate::model::{ChoiceReasons, OutcomeKind, Rtt, Strategy, TaskId, TaskState};
use crate::store::Error;
use crate::store::leases::checkpoints::RateState;
use crate::store::rows_and_errors::Rows;
use crate::store::sites::names_and_origins::Site;
use crate::store::tasks::unmet_and_wait_causes;
use crate::store::types::{Micros, Unsigned};
use crate::strategy::explain::{ExplainedCandidate, ExplainedWait};

/// Maximum number of tasks shown for a site. A site that is crawled every hour has thousands of
/// tasks.
const NEWEST_TASKS: i64 = 100;

/// A task of a site and its newest choice of an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct SiteTask {
    pub batch: String,
    pub round: u32,
    pub state: TaskState,
    pub reason: Option<String>,
    /// The agent's message about the end of the crawl.
    pub message: Option<String>,
    /// Why the task waits, if it has no agent.
    pub waits: Option<ExplainedWait>,
    pub agent: Option<String>,
    pub strategy: Option<Strategy>,
    /// Why this agent was chosen and, if a fallback was applied, the cause of the fallback.
    pub why: ChoiceReasons,
    pub candidates: Vec<ExplainedCandidate>,
    pub outcome: Option<Outcome>,
    /// The progress of the active crawl, from its checkpoint.
    pub progress: Option<Progress>,
    pub recrawl_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub kind: OutcomeKind,
    pub pages: u32,
    pub bytes: u64,
    /// Number of pages fetched again by an agent that took the crawl over.
    pub refetched: u32,
    /// Number of links skipped because they lead into traps.
    pub trapped: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    pub pages: u32,
    /// Size in bytes of the checkpoint's state, from which another agent can continue the crawl.
    pub state_bytes: u64,
    /// When the agent reported this progress.
    pub saved_at: DateTime<Utc>,
    /// The time until which the agent sends the site no request.
    pub paused_until: Option<DateTime<Utc>>,
    pub rate_state: RateState,
}

/// The site's newest tasks, newest first.
pub async fn tasks(conn: &mut PgConnection, site: &Site) -> Result<Vec<SiteTask>, Error> {
    let rows = sqlx::query!(
        r#"
        select t.id, b.name as batch, t.round, t.recrawl_at, t.state as "state!",
               case when t.state in ('failed', 'cancelled') then t.reason end as reason, nullif(o.message, '') as message,
               a.name as "agent?", c.strategy as "strategy?", c.detail as "detail?",
               (select coalesce(array_agg(n.name order by l.place), '{}')
                from unnest(c.candidates) with ordinality as l (agent, place) join agents n on n.id = l.agent) as "candidates!",
               coalesce(c.predicted_us, '{}') as "predicted_us!: Vec<Option<Rtt>>",
               coalesce(c.measured_us, '{}') as "measured_us!: Vec<Option<Rtt>>",
               coalesce(c.levels, '{}') as "levels!: Vec<Option<i64>>", o.kind as "kind?", o.pages as "pages?", o.bytes as "bytes?",
               o.refetched as "refetched?", o.trapped as "trapped?",
               k.pages as "kept_pages?", octet_length(k.state) as "kept_bytes?: Unsigned<u64>", k.saved_at as "saved_at?",
               k.interval_ms, k.paused_until, k.turned_away as "turned_away?", k.failed_in_a_row as "failed_in_a_row?",
               k.recent_requests as "recent_requests?", k.recent_errors as "recent_errors?", k.last_error as "last_error?"
        from tasks t
        join batches b on b.id = t.batch_id
        left join assignments c on c.id = t.assignment_id
        left join agents a on a.id = c.agent_id
        left join outcomes o on o.task_id = t.id
        left join checkpoints k on k.task_id = t.id
        where t.site_id = any($1)
        order by t.id desc
        limit $2
        "#,
        &site.ids() as _,
        NEWEST_TASKS,
    )
    .all(conn)
    .await?;
    let ids: Vec<TaskId> = rows.iter().map(|row| row.id).collect();
    let mut waits = unmet_and_wait_causes::of(conn, &ids).await?;
    let count = |stored: Option<Unsigned<u32>>| stored.map_or(0, u32::from);
    rows.into_iter()
        .map(|row| {
            let outcome = match (row.kind, row.pages, row.bytes, row.refetched, row.trapped) {
                (Some(kind), Some(pages), Some(bytes), Some(refetched), Some(trapped)) => {
                    Some(Outcome { kind, pages: pages.0, bytes: bytes.0, refetched: refetched.0, trapped: trapped.0 })
                }
                _ => None,
            };
            let progress = match (row.kept_pages, row.kept_bytes, row.saved_at) {
                (Some(pages), Some(bytes), Some(saved_at)) => Some(Progress {
                    pages: pages.0,
                    state_bytes: bytes.0,
                    saved_at,
                    paused_until: row.paused_until,
                    rate_state: RateState {
                        interval: row.interval_ms.map(Duration::from),
                        pause: None,
                        turned_away: count(row.turned_away),
                        failed_in_a_row: count(row.failed_in_a_row),
                        recent_requests: count(row.recent_requests),
                        recent_errors: count(row.recent_errors),
                        last_error: row.last_error.unwrap_or_default(),
                    },
                }),
                _ => None,
            };
            Ok(SiteTask {
                batch: row.batch,
                round: row.round.0,
                state: row.state,
                reason: row.reason,
                message: row.message,
                waits: waits.remove(&row.id),
                agent: row.agent,
                strategy: row.strategy,
                why: row.detail.unwrap_or_default(),
                candidates: candidates(row.candidates, &row.predicted_us, &row.measured_us, &row.levels),
                outcome,
                progress,
                recrawl_at: row.recrawl_at,
            })
        })
        .collect()
}

/// Combines the parallel arrays of a stored choice into its candidates, best first.
pub(in crate::store) fn candidates(
    agents: Vec<String>,
    predicted: &[Option<Rtt>],
    measured: &[Option<Rtt>],
    levels: &[Option<i64>],
) -> Vec<ExplainedCandidate> {
    let at = |round_trips: &[Option<Rtt>], place: usize| round_trips.get(place).copied().flatten();
    let one = |(place, agent)| ExplainedCandidate {
        agent,
        predicted: at(predicted, place),
        measured: at(measured, place),
        level: levels.get(place).copied().flatten(),
    };
    agents.into_iter().enumerate().map(one).collect()
}

/// One prober's measurement of a site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteMeasurement {
    pub prober: String,
    /// The statistical weighted mean of the samples. `None`, like `min` and `median`, if no sample
    /// was answered.
    pub rtt: Option<Rtt>,
    pub min: Option<Rtt>,
    pub median: Option<Rtt>,
    pub spread: Option<Micros>,
    pub answered: u32,
    pub lost: u32,
    pub address: Option<String>,
    /// Why the measurement failed.
    pub failure: Option<String>,
    /// The site that was measured instead; `None` if this site was measured.
    pub shared_from: Option<String>,
    /// Number of requests that the prober sent to the site, in all measurements.
    pub requests: u64,
    pub measured_at: DateTime<Utc>,
    /// Whether the site was measured for a confirmation.
    pub confirming: bool,
}

/// The newest measurement by each prober, sorted by the prober's name.
pub async fn measurements(conn: &mut PgConnection, site: &Site) -> Result<Vec<SiteMeasurement>, Error> {
    let measurements = sqlx::query_as!(
        SiteMeasurement,
        r#"
        select distinct on (a.name) a.name as prober, m.rtt_us as rtt, m.min_us as min, m.median_us as median, m.spread_us as spread,
               m.answered, m.lost, host(m.address) as address, m.failure, m.shared_from, m.requests, m.measured_at,
               c.site_id is not null as "confirming!"
        from site_measurements m join agents a on a.id = m.prober_id
        left join confirming_measurements c on c.site_id = m.site_id and c.prober_id = m.prober_id
        where m.site_id = any($1)
        order by a.name, m.measured_at desc
        "#,
        &site.ids() as _,
    );
    measurements.all(conn).await
}

/// The site's placement in the newest embedding in which the site is located.
pub async fn placement(conn: &mut PgConnection, site: &Site) -> Result<Option<Placement>, Error> {
    let placement = sqlx::query_as!(
        Placement,
        "select epoch, coordinate, fit_error from site_placements where site_id = any($1) order by epoch desc limit 1",
        &site.ids() as _,
    );
    placement.optional(conn).await
}
