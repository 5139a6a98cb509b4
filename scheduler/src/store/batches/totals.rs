//! The progress of batches. Triggers store each change of a task as differences of numbers. A job
//! adds these differences to stored sums. The view `batch_progress` adds the differences that are
//! not in the sums yet. So the cost of reading the progress depends only on the number of recent
//! changes, not on the number of tasks.

use std::time::Duration;

use sqlx::PgConnection;

use crate::status::{BatchStatus, UNMET_COUNTED};
use crate::throughput;

use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::types::{Interval, Millis, Unsigned, whole};

/// The time over which a batch's present crawl rate is averaged. Within this time even a fleet of a
/// few agents ends several crawls.
const RATE_WINDOW: Duration = Duration::from_secs(300);

/// Adds the differences in `batch_changes` to the batches' sums in `batch_totals`. Two concurrent
/// calls still add each difference only once.
pub async fn fold(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!(
        r#"
        with taken as (
            delete from batch_changes returning *
        ), known as (
            -- Drops differences of batches that were removed.
            select taken.* from taken join batches on batches.id = taken.batch_id
        ), by_minute as (
            insert into batch_minutes as m (batch_id, minute, crawls, pages, bytes)
            select batch_id, date_trunc('minute', at), sum(crawls), sum(pages), sum(bytes)
            from known where crawls > 0
            group by 1, 2
            order by 1, 2
            on conflict (batch_id, minute) do update
            set crawls = m.crawls + excluded.crawls, pages = m.pages + excluded.pages, bytes = m.bytes + excluded.bytes
        )
        insert into batch_totals as t (batch_id, submitted, measuring, located, assigned, leased, done, failed, cancelled,
                                       truncated, pages, bytes)
        select batch_id, sum(submitted), sum(measuring), sum(located), sum(assigned), sum(leased), sum(done), sum(failed),
               sum(cancelled), sum(truncated), sum(pages), sum(bytes)
        from known
        group by batch_id
        order by batch_id
        on conflict (batch_id) do update
        set submitted = t.submitted + excluded.submitted, measuring = t.measuring + excluded.measuring,
            located = t.located + excluded.located, assigned = t.assigned + excluded.assigned,
            leased = t.leased + excluded.leased, done = t.done + excluded.done, failed = t.failed + excluded.failed,
            cancelled = t.cancelled + excluded.cancelled, truncated = t.truncated + excluded.truncated,
            pages = t.pages + excluded.pages, bytes = t.bytes + excluded.bytes
        "#,
    )
    .run(conn)
    .await
}

/// Deletes at most `limit` rows of `batch_minutes` older than `keep`. Returns the number of deleted
/// rows.
pub(in crate::store) async fn prune(conn: &mut PgConnection, keep: Duration, limit: i64) -> Result<u64, Error> {
    sqlx::query!(
        r#"
        delete from batch_minutes where (batch_id, minute) in (
            select batch_id, minute from batch_minutes where minute < now() - $1::interval order by minute limit $2
        )
        "#,
        Interval(keep),
        limit,
    )
    .affected(conn)
    .await
}

/// Returns at most `limit` batches with open tasks, the newest first, and the number of further
/// such batches. Does not compute the remaining times ([`BatchStatus::estimate`]).
pub async fn unfinished(conn: &mut PgConnection, limit: u32) -> Result<(Vec<BatchStatus>, u64), Error> {
    let rows = sqlx::query!(
        r#"
        with unfinished as (
            select b.id, b.name, b.strategy, b.created_at, b.max_duration_ms, p.*, count(*) over () as all_unfinished
            from batch_progress p join batches b on b.id = p.batch_id
            where p.submitted + p.measuring + p.located + p.assigned + p.leased > 0
            order by b.id desc
            limit $1
        )
        select u.id as "id!", u.name as "name!", u.strategy as "strategy!", u.all_unfinished as "all!: Unsigned<u64>",
               u.submitted + u.measuring + u.located + u.assigned + u.leased as "open!: Unsigned<u64>",
               u.done + u.failed + u.cancelled as "ended!: Unsigned<u64>", u.failed as "failed!: Unsigned<u64>",
               u.leased as "leased!: Unsigned<u64>",
               -- Counts only if the batch ever had an unmet task, and only up to a limit.
               case when exists (
                   select from batch_constraints c where c.batch_id = u.id and c.unmet_cause is not null
               ) then (
                   select count(*) from (
                       select from task_holds h where h.batch_id = u.id and h.cause = 'unmet' limit $2
                   ) counted
               ) else 0 end as "unmet!: Unsigned<u64>",
               coalesce(recent.crawls, 0)::float8 as "crawls!", coalesce(recent.bytes, 0)::float8 as "bytes!",
               recent.since as "since: Interval", u.max_duration_ms as "max_duration_ms!: Millis",
               -- The end of the present minute is in the future, so the difference may be negative.
               greatest(now() - coalesce(
                   (select max(at) from batch_changes where batch_id = u.id and crawls > 0),
                   (select max(minute) + interval '1 minute' from batch_minutes where batch_id = u.id), u.created_at
               ), interval '0') as "idle!: Interval"
        from unfinished u
        left join lateral (
            select sum(crawls) as crawls, sum(bytes) as bytes, now() - greatest(min(minute), now() - $3::interval) as since
            from (
                select minute, crawls, bytes from batch_minutes
                where batch_id = u.id and minute > now() - $3::interval
                union all
                select date_trunc('minute', at), crawls, bytes from batch_changes
                where batch_id = u.id and crawls > 0 and at > now() - $3::interval
            ) parts
        ) recent on true
        order by u.id desc
        "#,
        i64::from(limit),
        whole::<i64, _>(UNMET_COUNTED),
        Interval(RATE_WINDOW),
    )
    .all(conn)
    .await?;
    let all = rows.first().map_or(0, |row| row.all.0);
    let batches: Vec<BatchStatus> = rows
        .into_iter()
        .map(|row| {
            let window = row.since.unwrap_or_default().0;
            let per_minute = |amount: f64| throughput::per_minute(amount, window).filter(|rate| *rate > 0.0);
            BatchStatus {
                id: row.id,
                name: row.name,
                strategy: row.strategy,
                sites: row.open.0 + row.ended.0,
                ended: row.ended.0,
                failed: row.failed.0,
                crawling: row.leased.0,
                unmet: row.unmet.0,
                sites_per_minute: per_minute(row.crawls),
                megabytes_per_minute: per_minute(row.bytes / throughput::BYTES_PER_MEGABYTE),
                idle: row.idle.0,
                max_duration: row.max_duration_ms.0,
                estimate: None,
            }
        })
        .collect();
    let more = all.saturating_sub(u64::try_from(batches.len()).unwrap_or(u64::MAX));
    Ok((batches, more))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::batches::changes::{self, ChangeScope};
    use crate::store::batches::{self, removal};
    use crate::store::fixtures::{self, Conn};
    use crate::store::leases::outcomes::{Budget, CrawlEnding};
    use crate::store::tasks::rounds;

    const SHOWN: &str = "select row_to_json(p)::text from batch_progress p order by batch_id";
    const COUNTED: &str = "
        select row_to_json(c)::text from (
            select b.id as batch_id, count(t.id) filter (where t.state = 'submitted') as submitted,
                   count(t.id) filter (where t.state = 'measuring') as measuring,
                   count(t.id) filter (where t.state = 'located') as located,
                   count(t.id) filter (where t.state = 'assigned') as assigned,
                   count(t.id) filter (where t.state = 'leased') as leased,
                   count(t.id) filter (where t.state = 'done') as done,
                   count(t.id) filter (where t.state = 'failed') as failed,
                   count(t.id) filter (where t.state = 'cancelled') as cancelled,
                   count(o.task_id) filter (where o.kind = 'truncated') as truncated,
                   coalesce(sum(o.pages), 0) as pages, coalesce(sum(o.bytes), 0) as bytes
            from batches b
            left join tasks t on t.batch_id = b.id and t.retried_at is null
            left join outcomes o on o.task_id = t.id
            group by b.id
        ) c
        order by batch_id";

    /// Checks that the numbers in `batch_progress` equal the counted tasks, before and after a call
    /// of [`fold`].
    async fn is_exact(conn: &mut PgConnection) {
        let counted: Vec<(String,)> = fixtures::rows(conn, COUNTED).await;
        assert!(!counted.is_empty());
        assert_eq!(fixtures::rows::<(String,)>(conn, SHOWN).await, counted, "before");
        fold(conn).await.expect("fold");
        assert_eq!(fixtures::rows::<(String,)>(conn, SHOWN).await, counted, "after");
        assert_eq!(fixtures::scalar::<i64>(conn, "select count(*) from batch_changes").await, 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn progress_is_exact_through_a_task_s_whole_life(mut conn: Conn) {
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let tasks = fixtures::queue(&mut conn, batch, agent, &["a.cn", "b.cn", "c.cn"]).await;
        is_exact(&mut conn).await;
        let endings = [CrawlEnding::Truncated(Budget::Pages), CrawlEnding::Complete, CrawlEnding::Unreachable(None)];
        for (task, ending) in tasks.iter().zip(endings) {
            fixtures::grant(&mut conn, agent, session).await;
            is_exact(&mut conn).await;
            fixtures::record(&mut conn, agent, &fixtures::report(*task, fixtures::TOKEN, ending)).await;
            is_exact(&mut conn).await;
        }
        let progress = batches::progress(&mut conn, batch).await.expect("progress");
        assert_eq!((progress.truncated, progress.complete, progress.failed, progress.pages), (1, 1, 1, 9));
        changes::retry(&mut conn, batch, "b", &ChangeScope::All).await.expect("retry");
        is_exact(&mut conn).await;
        rounds::next(&mut conn, &tasks[..1]).await.expect("crawl again");
        is_exact(&mut conn).await;
        let progress = batches::progress(&mut conn, batch).await.expect("progress");
        assert_eq!((progress.truncated, progress.complete, progress.open(), progress.pages), (0, 1, 2, 3));
        changes::cancel(&mut conn, batch, "b", &ChangeScope::All).await.expect("cancel");
        is_exact(&mut conn).await;
        removal::remove_tasks(&mut conn, &tasks[1..2]).await.expect("remove");
        fold(&mut conn).await.expect("fold");
        assert_eq!(fixtures::scalar::<i64>(&mut conn, "select done from batch_totals").await, 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn crawls_count_in_the_minute_in_which_they_end(mut conn: Conn) {
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let tasks = fixtures::queue(&mut conn, batch, agent, &["a.cn", "b.cn"]).await;
        fixtures::queue(&mut conn, batch, agent, &["c.cn"]).await;
        fixtures::grant(&mut conn, agent, session).await;
        fixtures::complete(&mut conn, agent, tasks[0]).await;
        let unfinished = async |conn: &mut PgConnection| super::unfinished(conn, 10).await.expect("read");
        let (before, more) = unfinished(&mut conn).await;
        assert_eq!((before.len(), more, before[0].sites, before[0].ended), (1, 0, 3, 1));
        assert!(before[0].sites_per_minute.is_some(), "{before:?}");
        fold(&mut conn).await.expect("fold");
        fixtures::complete(&mut conn, agent, tasks[1]).await;
        fold(&mut conn).await.expect("fold");
        let crawls = "select sum(crawls)::bigint from batch_minutes";
        assert_eq!(fixtures::scalar::<i64>(&mut conn, crawls).await, 2);
        fixtures::execute(&mut conn, "update batch_minutes set minute = minute - interval '2 hours'").await;
        let (after, _) = unfinished(&mut conn).await;
        assert_eq!(after[0].sites_per_minute, None, "none ended of late");
        assert!(after[0].idle > Duration::from_secs(7_000) && after[0].idle < Duration::from_secs(7_400), "{after:?}");
        let kept = Duration::from_secs(3_600);
        assert!(prune(&mut conn, kept, 10).await.expect("prune") > 0);
        assert_eq!(prune(&mut conn, kept, 10).await.expect("prune"), 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn only_batches_with_open_tasks_are_unfinished_and_a_limit_counts_the_others(mut conn: Conn) {
        for name in ["ended", "old", "new"] {
            let batch = fixtures::batch(&mut conn, name, "random").await;
            let site = fixtures::site(&mut conn, &format!("{name}.cn")).await;
            let state = if name == "ended" { "cancelled" } else { "submitted" };
            fixtures::task(&mut conn, batch, site, state).await;
        }
        let (listed, more) = unfinished(&mut conn, 1).await.expect("read");
        assert_eq!((listed[0].name.as_str(), listed.len(), more), ("new", 1, 1));
    }
}
