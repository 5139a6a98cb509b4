//! Reads what the estimate of a batch's remaining time needs: the numbers of tasks by state, and the
//! recent crawls. A task is ended, active, waiting, or stalled because its agent is paused,
//! disconnected or gone.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::BatchId;
use crate::store::Error;
use crate::store::reports::accuracy_failures_agents::ReportScope;
use crate::store::rows_and_errors::Rows;
use crate::store::types::{Interval, Millis, Unsigned};
use crate::throughput::{
    self, BegunCrawl, Estimate, FEWEST_RECENT, RecentCrawls, Remaining, StallReason, StalledCrawls,
};

/// Maximum number of recent crawls, and of active crawls, whose durations are read as a sample. The
/// durations of a thousand crawls are read in a few milliseconds, and their distribution is
/// accurate to within a few percent.
const MOST_TOLD: i64 = 1000;

/// The remaining time of a batch's newest rounds; `None` if all of them have ended. Reads the whole
/// batch three times.
pub async fn estimate(conn: &mut PgConnection, batch: BatchId) -> Result<Option<Estimate>, Error> {
    let scope = ReportScope::newest(batch);
    let remaining = task_totals(conn, scope).await?.remaining;
    Ok(throughput::estimate(&remaining, &recent(conn, scope).await?))
}

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

/// The crawls that began in the second half of the time since the first crawl began. If any of the
/// ten crawls that ended last began before this half, includes all crawls from the earliest of
/// these ten. If there are more than a thousand crawls, a sample of a thousand is read. Also counts
/// the crawls that began in the last quarter of the time since the first crawl began or, if that is
/// longer, since the tenth newest crawl began.
pub async fn recent(conn: &mut PgConnection, scope: ReportScope) -> Result<RecentCrawls, Error> {
    let row = sqlx::query!(
        r#"
        with crawled as (
            select task_id, begun, ended from crawls
            where batch_id = $1 and case when $2::integer is null then newest_round else round = $2 end
        ), under_way as (
            select l.task_id, l.granted_at as begun from tasks t join leases l on l.task_id = t.id and l.state = 'active'
            -- Omits stalled crawls, because they do not show how long a crawl takes.
            join sessions s on s.id = l.session_id and s.state = 'active' and s.disconnected_at is null and s.paused is null
            where t.batch_id = $1 and t.state = 'leased'
              and case when $2::integer is null then t.retried_at is null else t.round = $2 end
        ), all_begun as (
            select task_id, begun, ended from crawled
            union all
            select task_id, begun, null from under_way
        ), late as (
            select least(half, (select min(begun) from (select begun from crawled order by ended desc limit $3) newest)) as since,
                   least(quarter, (select min(begun) from (select begun from all_begun order by begun desc limit $3) newest)) as begun_since
            from (
                select now() - (now() - min(begun)) / 2 as half, now() - (now() - min(begun)) / 4 as quarter from all_begun
            ) elapsed
        ), of_late as (
            select task_id, ended is not null as is_over,
                   greatest(coalesce(ended, now()) - begun, interval '0') as lasted
            from all_begun, late
            where begun >= since
        ), told as (
            select is_over, lasted from of_late order by hashint8(task_id) limit $4
        ), under_way_told as (
            select now() - begun as lasted
            from under_way order by hashint8(task_id) limit $4
        )
        select coalesce((select array_agg(lasted) from told where is_over), '{}') as "over!: Vec<Interval>",
               coalesce((select array_agg(lasted) from told where not is_over), '{}') as "going_on!: Vec<Interval>",
               coalesce((select array_agg(lasted) from under_way_told), '{}') as "under_way!: Vec<Interval>",
               coalesce(extract(epoch from (select sum(lasted) from of_late))::float8 / nullif(extract(epoch from now() - since)::float8, 0), 0) as "at_once!",
               now() - begun_since as "begun_window: Interval",
               (select count(*) from all_begun where begun >= begun_since) as "begun!: Unsigned<u64>"
        from late
        "#,
        scope.batch.get(),
        scope.stored(),
        FEWEST_RECENT,
        MOST_TOLD,
    )
    .one(conn)
    .await?;
    let lasted = |all: &[Interval], ended| all.iter().map(move |time| BegunCrawl { time: time.0, ended }).collect();
    let (over, going_on): (Vec<BegunCrawl>, Vec<BegunCrawl>) = (lasted(&row.over, true), lasted(&row.going_on, false));
    Ok(RecentCrawls {
        crawls: [over, going_on].concat(),
        under_way: row.under_way.into_iter().map(Duration::from).collect(),
        at_once: row.at_once,
        begun: row.begun.0,
        begun_window: row.begun_window.unwrap_or_default().0,
    })
}
