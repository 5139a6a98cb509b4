//! Where the tasks of a batch stand: what has ended, goes on, waits, and stands still with its agent.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::{Error, unsigned};
use crate::throughput::{Remaining, Stalled, Standstill};

use super::{Scope, length};

/// Where the tasks stand.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// The database's clock.
    pub now: DateTime<Utc>,
    /// How many they are.
    pub tasks: u64,
    /// Of these, those that ended without an outcome.
    pub uncrawled: u64,
    /// What has not ended.
    pub remaining: Remaining,
    /// The first grant of a lease that is active; `None` where none is.
    pub crawling_since: Option<DateTime<Utc>>,
    /// Pages of crawls under way, as far as they have said.
    pub crawling_pages: u64,
}

/// Counts tasks by where they stand.
pub async fn standing(conn: &mut PgConnection, scope: Scope) -> Result<Standing, Error> {
    let row = sqlx::query!(
        r#"
        select now() as "now!", count(*) as "tasks!",
               count(*) filter (where t.state in ('done', 'failed', 'cancelled') and o.task_id is null) as "uncrawled!",
               count(*) filter (where t.state not in ('done', 'failed', 'cancelled')) as "open!",
               count(*) filter (where t.state in ('submitted', 'measuring', 'located')) as "unassigned!",
               -- Nothing that passes by itself: an address or a pause does.
               count(*) filter (
                   where (t.state in ('submitted', 'measuring') and exists (select from stage_causes where stage = 'measuring'))
                      or (t.held and h.cause in ('unmet', 'breaker'))
               ) as "held!",
               count(l.task_id) as "crawling!", min(l.granted_at) as crawling_since,
               coalesce(sum(c.pages) filter (where l.task_id is not null), 0)::bigint as "crawling_pages!",
               greatest(coalesce(extract(epoch from max(h.until) filter (where h.cause = 'pause') - now()), 0), 0)::float8 as "paused_for!",
               (select max_duration_ms from batches where id = $1) as "max_duration_ms!",
               exists (select from sessions where state = 'active') as "connected!",
               exists (
                   select from sessions s join agents a on a.id = s.agent_id
                   where s.state = 'active' and s.paused is null and s.hung_up_at is null and a.draining_since is null
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
    .fetch_one(&mut *conn)
    .await?;
    let stalled = stalled(conn, scope).await?;
    let still = stalled.iter().map(|one| one.sites).sum();
    let count = |value| unsigned::<i64, u64>("tasks", "count", value);
    let (open, held, crawling) = (count(row.open)?, count(row.held)?, count(row.crawling)?);
    Ok(Standing {
        now: row.now,
        tasks: count(row.tasks)?,
        uncrawled: count(row.uncrawled)?,
        remaining: Remaining {
            waiting: open.saturating_sub(held).saturating_sub(crawling),
            unassigned: count(row.unassigned)?.saturating_sub(held),
            held,
            crawling: crawling.saturating_sub(still),
            stalled,
            paused_for: length(row.paused_for),
            at_most: Duration::from_millis(unsigned("batches", "max_duration_ms", row.max_duration_ms)?),
            connected: row.connected,
            taking: row.taking,
        },
        crawling_since: row.crawling_since,
        crawling_pages: unsigned("checkpoints", "pages", row.crawling_pages)?,
    })
}

/// The crawls under way at agents that have paused, hung up or are gone, by agent, most first. Of the batch only what is leased is read.
async fn stalled(conn: &mut PgConnection, scope: Scope) -> Result<Vec<Stalled>, Error> {
    let rows = sqlx::query!(
        r#"
        select a.name, s.state <> 'active' as "away!", s.hung_up_at is not null as "hung_up!", s.paused, count(*) as "sites!"
        from tasks t
        join leases l on l.task_id = t.id and l.state = 'active'
        join sessions s on s.id = l.session_id and (s.state <> 'active' or s.hung_up_at is not null or s.paused is not null)
        join agents a on a.id = l.agent_id
        where t.batch_id = $1 and t.state = 'leased'
          and case when $2::integer is null then t.retried_at is null else t.round = $2 end
        group by a.id, s.id
        order by count(*) desc, a.name
        "#,
        scope.batch.get(),
        scope.stored(),
    )
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|row| {
            let why = match row.paused {
                _ if row.away => Standstill::Away,
                Some(reason) if !row.hung_up => Standstill::Paused(reason),
                _ => Standstill::HungUp,
            };
            Ok(Stalled { agent: row.name, why, sites: unsigned("leases", "count", row.sites)? })
        })
        .collect()
}
