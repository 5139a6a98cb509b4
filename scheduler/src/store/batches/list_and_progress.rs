//! Lists batches with the numbers of their tasks, and reads a batch's progress and the reasons why
//! its tasks failed or were cancelled.
//!
//! Database triggers store the effect of each change of a task on the batch's numbers, as a
//! difference. A job adds these differences to stored sums. The view `batch_progress` adds the
//! differences that are not in the sums yet. Holds are counted in the same way. So the cost of
//! reading the progress depends only on the number of recent changes, not on the number of tasks.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{BatchId, ReasonKind, Strategy, TaskState, WaitCause};
use crate::store::Error;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::tasks::unmet_and_wait_causes;
use crate::store::types::{Interval, Unsigned};
use crate::strategy::explain::ExplainedWait;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchSummary {
    pub id: BatchId,
    pub name: String,
    pub strategy: Strategy,
    /// Time of the first submission.
    pub created_at: DateTime<Utc>,
    /// Number of tasks that have not ended.
    pub open: u64,
    pub done: u64,
    pub failed: u64,
    pub cancelled: u64,
}

/// Selects batches. A field that is `None` sets no condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchFilter {
    /// Whether the batch has tasks that have not ended.
    pub open: Option<bool>,
    /// The batch was first submitted at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// The batch was first submitted before this time.
    pub until: Option<DateTime<Utc>>,
}

/// At most `limit` of the selected batches below `before`, newest first, and the number of all
/// selected batches below `before`.
pub async fn list(
    conn: &mut PgConnection,
    filter: BatchFilter,
    before: Option<BatchId>,
    limit: i64,
) -> Result<(Vec<BatchSummary>, u64), Error> {
    let rows = sqlx::query!(
        r#"
        select b.id as "id!: BatchId", b.name as "name!", b.strategy as "strategy!", b.created_at as "created_at!",
               count(*) over () as "all!: Unsigned<u64>",
               p.submitted + p.measuring + p.located + p.assigned + p.leased as "open!: Unsigned<u64>",
               p.done as "done!: Unsigned<u64>", p.failed as "failed!: Unsigned<u64>",
               p.cancelled as "cancelled!: Unsigned<u64>"
        from batches b
        join batch_progress p on p.batch_id = b.id
        where ($2::boolean is null or $2 = (p.submitted + p.measuring + p.located + p.assigned + p.leased > 0))
          and ($3::timestamptz is null or b.created_at >= $3)
          and ($4::timestamptz is null or b.created_at < $4)
          and ($5::bigint is null or b.id < $5)
        order by b.id desc
        limit $1::bigint
        "#,
        limit,
        filter.open,
        filter.since,
        filter.until,
        before.map(BatchId::get),
    )
    .all(conn)
    .await?;
    let all = rows.first().map_or(0, |row| row.all.0);
    let listed = rows.into_iter().map(|row| BatchSummary {
        id: row.id,
        name: row.name,
        strategy: row.strategy,
        created_at: row.created_at,
        open: row.open.0,
        done: row.done.0,
        failed: row.failed.0,
        cancelled: row.cancelled.0,
    });
    Ok((listed.collect(), all))
}

/// Numbers of a batch's tasks by state, and of fetched pages and bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    pub submitted: u64,
    pub measuring: u64,
    /// Number of located tasks. For a located task, the round trips to the site are known, or a
    /// stored cause says why none is known.
    pub located: u64,
    pub assigned: u64,
    pub leased: u64,
    /// Number of done tasks with all pages fetched.
    pub complete: u64,
    /// Number of done tasks whose crawl was ended by a budget.
    pub truncated: u64,
    pub failed: u64,
    pub cancelled: u64,
    /// Number of pages fetched by ended crawls.
    pub pages: u64,
    pub bytes: u64,
    /// The most frequent reason why tasks without an agent wait, and the number of tasks that wait
    /// for this reason.
    pub waiting_for: Option<(ExplainedWait, u64)>,
    /// The earliest time at which a recrawl of an ended task is due; `None` if no recrawl is
    /// planned.
    pub next_recrawl: Option<DateTime<Utc>>,
}

impl Progress {
    /// Number of tasks that have not ended.
    pub fn open(&self) -> u64 {
        self.submitted + self.measuring + self.located + self.assigned + self.leased
    }

    /// Number of open tasks without an active crawl.
    fn waiting(&self) -> u64 {
        self.open() - self.leased
    }
}

/// Adds the differences in `batch_changes` to the batches' sums in `batch_totals`. Even if two
/// calls are concurrent, each difference is added only once.
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
                                       truncated, pages, bytes, held_address, held_pause, held_breaker, held_unmet,
                                       held_confirming)
        select batch_id, sum(submitted), sum(measuring), sum(located), sum(assigned), sum(leased), sum(done), sum(failed),
               sum(cancelled), sum(truncated), sum(pages), sum(bytes), sum(held_address), sum(held_pause), sum(held_breaker),
               sum(held_unmet), sum(held_confirming)
        from known
        group by batch_id
        order by batch_id
        on conflict (batch_id) do update
        set submitted = t.submitted + excluded.submitted, measuring = t.measuring + excluded.measuring,
            located = t.located + excluded.located, assigned = t.assigned + excluded.assigned,
            leased = t.leased + excluded.leased, done = t.done + excluded.done, failed = t.failed + excluded.failed,
            cancelled = t.cancelled + excluded.cancelled, truncated = t.truncated + excluded.truncated,
            pages = t.pages + excluded.pages, bytes = t.bytes + excluded.bytes,
            held_address = t.held_address + excluded.held_address, held_pause = t.held_pause + excluded.held_pause,
            held_breaker = t.held_breaker + excluded.held_breaker, held_unmet = t.held_unmet + excluded.held_unmet,
            held_confirming = t.held_confirming + excluded.held_confirming
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

/// The batch's progress, computed from the newest round of each site.
pub async fn progress(conn: &mut PgConnection, batch: BatchId) -> Result<Progress, Error> {
    let row = sqlx::query!(
        r#"
        select b.strategy, p.submitted as "submitted!: Unsigned<u64>", p.measuring as "measuring!: Unsigned<u64>",
               p.located as "located!: Unsigned<u64>", p.assigned as "assigned!: Unsigned<u64>",
               p.leased as "leased!: Unsigned<u64>", p.done - p.truncated as "complete!: Unsigned<u64>",
               p.truncated as "truncated!: Unsigned<u64>", p.failed as "failed!: Unsigned<u64>",
               p.cancelled as "cancelled!: Unsigned<u64>", p.pages as "pages!: Unsigned<u64>",
               p.bytes as "bytes!: Unsigned<u64>", p.held_address as "held_address!: Unsigned<u64>",
               p.held_pause as "held_pause!: Unsigned<u64>", p.held_breaker as "held_breaker!: Unsigned<u64>",
               p.held_unmet as "held_unmet!: Unsigned<u64>", p.held_confirming as "held_confirming!: Unsigned<u64>",
               (select min(t.recrawl_at) from tasks t where t.batch_id = b.id) as next_recrawl
        from batch_progress p join batches b on b.id = p.batch_id
        where p.batch_id = $1
        "#,
        batch.get(),
    )
    .one(conn)
    .await?;
    let mut progress = Progress {
        submitted: row.submitted.0,
        measuring: row.measuring.0,
        located: row.located.0,
        assigned: row.assigned.0,
        leased: row.leased.0,
        complete: row.complete.0,
        truncated: row.truncated.0,
        failed: row.failed.0,
        cancelled: row.cancelled.0,
        pages: row.pages.0,
        bytes: row.bytes.0,
        waiting_for: None,
        next_recrawl: row.next_recrawl,
    };
    if progress.waiting() > 0 {
        let held = [
            (WaitCause::Address, row.held_address.0),
            (WaitCause::Pause, row.held_pause.0),
            (WaitCause::Breaker, row.held_breaker.0),
            (WaitCause::Unmet, row.held_unmet.0),
            (WaitCause::Confirming, row.held_confirming.0),
        ];
        let all_held: u64 = held.iter().map(|(_, tasks)| tasks).sum();
        let waiting = held.map(|(cause, tasks)| (TaskState::Located, Some(cause), tasks)).into_iter().chain([
            (TaskState::Submitted, None, progress.submitted),
            (TaskState::Measuring, None, progress.measuring),
            (TaskState::Located, None, progress.located.saturating_sub(all_held)),
        ]);
        progress.waiting_for = unmet_and_wait_causes::commonest(conn, batch, row.strategy, waiting).await?;
    }
    Ok(progress)
}

/// A reason why tasks of a batch failed or were cancelled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndReason {
    pub kind: ReasonKind,
    pub tasks: u64,
    pub site: String,
    /// The state of `site`'s task, followed by the reason for this state.
    pub reason: String,
}

/// Why tasks of the batch failed or were cancelled: one row per kind of reason, the most frequent
/// first.
pub async fn endings(conn: &mut PgConnection, batch: BatchId) -> Result<Vec<EndReason>, Error> {
    let endings = sqlx::query_as!(
        EndReason,
        r#"
        select kinds.kind as "kind!: ReasonKind", kinds.tasks as "tasks!: Unsigned<u64>", s.name as site,
               t.state::text || coalesce(': ' || t.reason, '') as "reason!"
        from (
            select coalesce(reason_kind::text, 'other') as kind, count(*) as tasks, min(id) as example
            from tasks
            where batch_id = $1 and retried_at is null and state in ('failed', 'cancelled')
            group by 1
        ) kinds
        join tasks t on t.id = kinds.example
        join sites s on s.id = t.site_id
        order by kinds.tasks desc, kinds.kind
        "#,
        batch.get(),
    );
    endings.all(conn).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Budget, CrawlEnding};
    use crate::store::Tx;
    use crate::store::batches::changes::ChangeKind;
    use crate::store::batches::{self, removal};
    use crate::store::fixtures::{self, Conn};
    use crate::store::tasks::holds::{self, Cause, HoldFilter};
    use crate::store::tasks::measuring_and_rounds;

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
                   coalesce(sum(o.pages), 0) as pages, coalesce(sum(o.bytes), 0) as bytes,
                   count(h.task_id) filter (where h.cause = 'address') as held_address,
                   count(h.task_id) filter (where h.cause = 'pause') as held_pause,
                   count(h.task_id) filter (where h.cause = 'breaker') as held_breaker,
                   count(h.task_id) filter (where h.cause = 'unmet') as held_unmet,
                   count(h.task_id) filter (where h.cause = 'confirming') as held_confirming
            from batches b
            left join tasks t on t.batch_id = b.id and t.retried_at is null
            left join outcomes o on o.task_id = t.id
            left join task_holds h on h.task_id = t.id and not h.admitted
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
        let mut conn = Tx::on(&mut conn).await.expect("begin");
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
        fixtures::change(&mut conn, batch, ChangeKind::Retry).await;
        is_exact(&mut conn).await;
        let locked = fixtures::lock(&mut conn, &tasks).await;
        measuring_and_rounds::next(&mut conn, &locked[..1]).await.expect("crawl again");
        is_exact(&mut conn).await;
        let progress = batches::progress(&mut conn, batch).await.expect("progress");
        assert_eq!((progress.truncated, progress.complete, progress.open(), progress.pages), (0, 1, 2, 3));
        fixtures::change(&mut conn, batch, ChangeKind::Cancel).await;
        is_exact(&mut conn).await;
        removal::remove_tasks(&mut conn, &locked[1..2]).await.expect("remove");
        fold(&mut conn).await.expect("fold");
        assert_eq!(fixtures::scalar::<i64>(&mut conn, "select done from batch_totals").await, 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn held_tasks_are_counted_by_cause_through_every_change_of_a_hold(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let tasks = fixtures::located(&mut conn, batch, &["a.cn", "b.cn", "c.cn", "d.cn", "e.cn"]).await;
        let tasks = fixtures::lock(&mut conn, &tasks).await;
        let address = |admitted| Cause::Address { address: "192.0.2.1/32".parse().expect("an address"), admitted };
        let first = [
            (tasks[0], address(false)),
            (tasks[1], address(true)),
            (tasks[2], Cause::Pause(Duration::from_secs(9))),
            (tasks[3], Cause::Unmet),
            (tasks[4], Cause::Confirming(None)),
        ];
        holds::hold(&mut conn, &first).await.expect("hold");
        is_exact(&mut conn).await;
        let wait = batches::progress(&mut conn, batch).await.expect("progress").waiting_for.expect("a cause");
        assert_eq!((wait.0.cause, wait.1), (WaitCause::Unmet, 1));
        // Replaces the causes of two holds, and repeats one.
        let then = [(tasks[0], Cause::Breaker), (tasks[3], Cause::Breaker), (tasks[2], Cause::Pause(Duration::ZERO))];
        holds::hold(&mut conn, &then).await.expect("hold");
        is_exact(&mut conn).await;
        let wait = batches::progress(&mut conn, batch).await.expect("progress").waiting_for.expect("a cause");
        assert_eq!((wait.0.cause, wait.1), (WaitCause::Breaker, 2));
        holds::release(&mut conn, HoldFilter::Due, 10).await.expect("release");
        is_exact(&mut conn).await;
        fixtures::change(&mut conn, batch, ChangeKind::Cancel).await;
        is_exact(&mut conn).await;
        assert_eq!(fixtures::scalar::<i64>(&mut conn, "select count(*) from task_holds").await, 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn crawls_count_in_the_minute_in_which_they_end(mut conn: Conn) {
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let tasks = fixtures::queue(&mut conn, batch, agent, &["a.cn", "b.cn"]).await;
        fixtures::queue(&mut conn, batch, agent, &["c.cn"]).await;
        fixtures::grant(&mut conn, agent, session).await;
        fixtures::complete(&mut conn, agent, tasks[0]).await;
        let unfinished =
            async |conn: &mut PgConnection| crate::store::reports::status::unfinished(conn, 10).await.expect("read");
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
    async fn progress_reads_few_rows_of_a_large_batch(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        fixtures::execute(
            &mut conn,
            "insert into batch_constraints select id, '{}', 'excluded', '{\"fleet\": 3, \"by\": {}}' from batches",
        )
        .await;
        fixtures::execute(
            &mut conn,
            "with made as (
                insert into sites (name) select 's' || n || '.cn' from generate_series(1, 3000) n returning id
            ), held as (
                insert into tasks (batch_id, site_id, state, held)
                select b.id, made.id, 'located', made.id % 2 = 0 from batches b cross join made
                returning id, batch_id, site_id, held
            )
            insert into task_holds (task_id, batch_id, site_id, cause)
            select id, batch_id, site_id, 'unmet' from held where held",
        )
        .await;
        fixtures::execute(
            &mut conn,
            "update tasks set state = 'done', recrawl_at = now() where not held and site_id % 3 = 1",
        )
        .await;
        fixtures::execute(&mut conn, "update batches set policy = policy || '{\"recrawl_interval_ms\": 3600000}'")
            .await;
        fixtures::execute(&mut conn, "analyze").await;
        let mut tx = Tx::on(&mut conn).await.expect("begin");
        // This connection's statistics, so that no other connection changes the numbers.
        let read = async |conn: &mut PgConnection| -> i64 {
            fixtures::scalar(
                conn,
                "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint from pg_stat_xact_user_tables
                 where relname in ('tasks', 'task_holds')",
            )
            .await
        };
        let before = read(&mut tx).await;
        let progress = batches::progress(&mut tx, batch).await.expect("progress");
        let (wait, waiting) = progress.waiting_for.expect("tasks wait");
        assert_eq!((wait.cause, waiting, progress.next_recrawl.is_some()), (WaitCause::Unmet, 1_500, true));
        let rows = read(&mut tx).await - before;
        assert!(rows < 10, "{rows} rows");
    }
}
