//! Counts a batch's tasks: ended, active, waiting, or stalled because their agent is paused,
//! disconnected or gone.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::Error;
use crate::store::rows::Rows;
use crate::store::types::{Interval, Millis, Unsigned};
use crate::throughput::{Remaining, StallReason, StalledCrawls};

use super::ReportScope;

/// Number of tasks by state.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskTotals {
    /// The time by the database's clock.
    pub now: DateTime<Utc>,
    pub tasks: u64,
    /// Number of ended tasks that have no outcome.
    pub uncrawled: u64,
    pub remaining: Remaining,
    /// When the oldest active lease was granted; `None` if there is none.
    pub crawling_since: Option<DateTime<Utc>>,
    /// Number of pages that active crawls have fetched, according to their checkpoints.
    pub crawling_pages: u64,
}

pub async fn task_totals(conn: &mut PgConnection, scope: ReportScope) -> Result<TaskTotals, Error> {
    let row = sqlx::query!(
        r#"
        select now() as "now!", count(*) as "tasks!: Unsigned<u64>",
               count(*) filter (where t.state in ('done', 'failed', 'cancelled') and o.task_id is null) as "uncrawled!: Unsigned<u64>",
               count(*) filter (where t.state not in ('done', 'failed', 'cancelled')) as "open!: Unsigned<u64>",
               count(*) filter (where t.state in ('submitted', 'measuring', 'located')) as "unassigned!: Unsigned<u64>",
               -- Omits holds for an address or a pause, because these holds end by themselves.
               count(*) filter (
                   where (t.state in ('submitted', 'measuring') and exists (select from stage_causes where stage = 'measuring'))
                      or (t.held and h.cause in ('unmet', 'breaker'))
               ) as "held!: Unsigned<u64>",
               count(l.task_id) as "crawling!: Unsigned<u64>", min(l.granted_at) as crawling_since,
               coalesce(sum(c.pages) filter (where l.task_id is not null), 0)::bigint as "crawling_pages!: Unsigned<u64>",
               max(h.until) filter (where h.cause = 'pause') - now() as "paused_for: Interval",
               (select max_duration_ms from batches where id = $1) as "max_duration_ms!: Millis",
               exists (select from sessions where state = 'active') as "connected!",
               exists (
                   select from sessions s join agents a on a.id = s.agent_id
                   where s.state = 'active' and s.paused is null and s.disconnected_at is null and a.draining_since is null
               ) as "taking!"
        from tasks t
        left join outcomes o on o.task_id = t.id
        left join leases l on l.task_id = t.id and l.state = 'active' and t.state = 'leased'
        left join checkpoints c on c.task_id = t.id
        left join task_holds h on h.task_id = t.id
        where t.batch_id = $1 and case when $2::integer is null then t.retried_at is null else t.round = $2 end
        "#,
        scope.batch.get(),
        scope.stored(),
    )
    .one(conn)
    .await?;
    let stalled = stalled(conn, scope).await?;
    let still = stalled.iter().map(|one| one.sites).sum();
    let (open, held, crawling) = (row.open.0, row.held.0, row.crawling.0);
    Ok(TaskTotals {
        now: row.now,
        tasks: row.tasks.0,
        uncrawled: row.uncrawled.0,
        remaining: Remaining {
            waiting: open.saturating_sub(held).saturating_sub(crawling),
            unassigned: row.unassigned.0.saturating_sub(held),
            held,
            crawling: crawling.saturating_sub(still),
            stalled,
            paused_for: row.paused_for.unwrap_or_default().0,
            at_most: row.max_duration_ms.0,
            connected: row.connected,
            taking: row.taking,
        },
        crawling_since: row.crawling_since,
        crawling_pages: row.crawling_pages.0,
    })
}

/// The active crawls of agents that are paused, disconnected or gone, grouped by agent, the largest
/// group first. Reads only the batch's leased tasks.
async fn stalled(conn: &mut PgConnection, scope: ReportScope) -> Result<Vec<StalledCrawls>, Error> {
    let rows = sqlx::query!(
        r#"
        select a.name, s.state <> 'active' as "away!", s.disconnected_at is not null as "disconnected!", s.paused, count(*) as "sites!: Unsigned<u64>"
        from tasks t
        join leases l on l.task_id = t.id and l.state = 'active'
        join sessions s on s.id = l.session_id and (s.state <> 'active' or s.disconnected_at is not null or s.paused is not null)
        join agents a on a.id = l.agent_id
        where t.batch_id = $1 and t.state = 'leased'
          and case when $2::integer is null then t.retried_at is null else t.round = $2 end
        group by a.id, s.id
        order by count(*) desc, a.name
        "#,
        scope.batch.get(),
        scope.stored(),
    )
    .all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let why = match row.paused {
                _ if row.away => StallReason::Away,
                Some(reason) if !row.disconnected => StallReason::Paused(reason),
                _ => StallReason::Disconnected,
            };
            StalledCrawls { agent: row.name, why, sites: row.sites.0 }
        })
        .collect())
}
