//! Moves tasks from the state submitted to measuring, and to located when their sites are measured,
//! and makes new rounds: a new task for the same site after a task has ended.
//!
//! A new round does not change the results of earlier rounds. When a task ends with an outcome,
//! `leases::ending::complete` stores in the column `tasks.recrawl_at` when the next round is due;
//! an index finds due rounds. A round that ended without an outcome (for example failed as
//! *poison*, or cancelled) has no automatic next round. Invariants: a site has exactly one newest
//! round in a batch. A due recrawl makes one round, no matter how often schedulers look for due
//! recrawls.

use std::collections::BTreeMap;
use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, Rtt, SiteId, Strategy, TaskId, Unmeasured};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::Interval;
use crate::store::{Error, Locked, Tx};

/// A site that has tasks in the state `measuring`, and that every prober has measured or failed to
/// measure.
#[derive(Debug, Clone)]
pub struct MeasuredSite {
    pub site: SiteId,
    pub measured: Vec<(AgentId, Rtt)>,
    /// The newest failed measurement; `None` if none failed.
    pub failure: Option<String>,
    /// Whether the site's tasks have waited for longer than the `patience` given to [`heard`].
    pub overdue: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MeasuringBegun {
    pub tasks: u64,
    /// Sites that became aliases after they were submitted, each with the site to which it points.
    pub aliases: Vec<(SiteId, SiteId)>,
}

/// Moves at most `limit` tasks from `submitted` to `measuring`, while fewer than `at_once` tasks
/// are in the state `measuring`.
pub async fn begin_measuring(tx: &mut Tx<'_>, limit: i64, at_once: i64) -> Result<MeasuringBegun, Error> {
    let measuring = sqlx::query_scalar!(
        r#"select count(*) as "count!" from (select from tasks where state = 'measuring' limit $1) measuring"#,
        at_once,
    )
    .one(tx)
    .await?;
    // These are two statements, because the planner would read all tasks if one statement joined
    // the chosen tasks with the table `tasks`.
    let next = sqlx::query_scalar!(
        "select id from tasks where state = 'submitted' order by id limit $1 for update skip locked",
        limit.min(at_once - measuring).max(0),
    )
    .all(tx)
    .await?;
    let begun = sqlx::query!(
        r#"
        update tasks t set state = 'measuring', reason = null, state_since = now()
        where id = any($1)
        returning t.site_id, (select s.alias_of from sites s where s.id = t.site_id) as "alias_of: SiteId"
        "#,
        &next as _,
    )
    .all(tx)
    .await?;
    let tasks = u64::try_from(begun.len()).unwrap_or(u64::MAX);
    let aliases = begun.into_iter().filter_map(|row| Some((row.site_id, row.alias_of?)));
    let aliases: BTreeMap<SiteId, SiteId> = aliases.collect();
    Ok(MeasuringBegun { tasks, aliases: aliases.into_iter().collect() })
}

/// At most `limit` sites that have tasks in the state `measuring`, and that each of these probers
/// has measured or failed to measure. Measurements are counted as in
/// [`crate::store::measurements::orders::due_sites`]. The oldest site comes first. Returns no
/// site if there is no prober.
pub async fn heard(
    conn: &mut PgConnection,
    probers: &[AgentId],
    max_age: Duration,
    patience: Duration,
    limit: i64,
) -> Result<Vec<MeasuredSite>, Error> {
    let rows = sqlx::query!(
        r#"
        with waiting as (
            select site_id, min(state_since) as since from tasks where state = 'measuring' group by site_id
        ), known as (
            select waiting.site_id, since, prober_id, rtt_us, failure, measured_at
            from waiting
            join site_measurements using (site_id)
            join sites on sites.id = site_id
            where measured_at >= case when rtt_us is null then since
                                      else greatest(since - $2::interval, doubted_at) end
              and prober_id not in (select q.agent_id from quarantines q where q.released_at is null)
        ), heard as (
            -- `known` has at most one row per site and prober, so the rows can be counted.
            select site_id, min(since) as since from known
            where prober_id = any($1)
            group by site_id
            having count(*) = cardinality($1)
            order by site_id
            limit $4
        )
        select heard.site_id,
               array_agg(prober_id order by prober_id) filter (where rtt_us is not null) as "probers: Vec<AgentId>",
               array_agg(rtt_us order by prober_id) filter (where rtt_us is not null) as "rtts: Vec<Rtt>",
               (array_agg(failure order by measured_at desc) filter (where failure is not null))[1] as failure,
               heard.since < now() - $3::interval as "overdue!"
        from heard join known using (site_id)
        group by heard.site_id, heard.since
        order by heard.site_id
        "#,
        probers as _,
        Interval(max_age),
        Interval(patience),
        limit,
    )
    .all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let measured = row.probers.unwrap_or_default().into_iter().zip(row.rtts.unwrap_or_default()).collect();
            MeasuredSite { site: row.site_id, measured, failure: row.failure, overdue: row.overdue }
        })
        .collect())
}

/// Moves the tasks of these sites from `measuring` to `located`. If no round trip to a site is
/// known, its tasks store the reason.
pub async fn locate(conn: &mut PgConnection, located: &[(SiteId, Option<Unmeasured>)]) -> Result<u64, Error> {
    let sites: Vec<i64> = located.iter().map(|(site, _)| site.get()).collect();
    let unmeasured = located.iter().map(|(_, unmeasured)| unmeasured.as_ref());
    let (causes, said): (Vec<Option<&str>>, Vec<Option<&str>>) =
        unmeasured.map(|one| one.map(|one| (one.cause.name(), one.said.as_str())).unzip()).unzip();
    sqlx::query!(
        r#"
        with moved as (
            select tasks.id, located.cause, located.said
            from tasks
            join unnest($1::bigint[], $2::text[], $3::text[]) as located (site_id, cause, said)
                on located.site_id = tasks.site_id
            where tasks.state::text = 'measuring'
            order by tasks.id
            for update of tasks
        )
        update tasks set state = 'located', state_since = now(),
                         unmeasured = moved.cause::unmeasured_cause, unmeasured_detail = moved.said
        from moved where tasks.id = moved.id
        "#,
        &sites,
        &causes as &[Option<&str>],
        &said as &[Option<&str>],
    )
    .affected(conn)
    .await
}

/// The names of the strategies for which sites must be measured first. Tasks of other strategies
/// begin in the state located.
pub(in crate::store) fn distanced() -> Vec<String> {
    Strategy::each().filter(|strategy| strategy.needs_measuring()).map(String::from).collect()
}

/// The result of one pass over due recrawls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecrawlResult {
    /// Number of tasks found whose recrawl is due. If it equals the limit, more may be due.
    pub due: u64,
    /// Number of new rounds made for these tasks.
    pub rounds: u64,
}

/// Makes the next round of at most `limit` tasks whose recrawl is due by Postgres' clock.
pub async fn recrawl(tx: &mut Tx<'_>, limit: i64) -> Result<RecrawlResult, Error> {
    let due: Vec<Locked<TaskId>> = sqlx::query_scalar!(
        r#"
        select id from tasks
        where recrawl_at <= now()
          and batch_id not in (select batch_id from changes where finished_at is null and kind <> 'retry')
        order by recrawl_at, id
        limit $1
        -- Skips tasks that another transaction has locked, for example to cancel or retry them.
        for update skip locked
        "#,
        limit,
    )
    .locked(tx)
    .await?;
    if due.is_empty() {
        return Ok(RecrawlResult::default());
    }
    // This statement is separate from the one that locks the tasks, so that it sees changes
    // committed before the tasks were locked.
    let covered = sqlx::query_scalar!(
        r#"
        update tasks t set recrawl_at = null
        from sites s
        where t.id = any($1) and s.id = t.site_id
          -- The batch has another task for the same site: a newer task, or a task of the site to
          -- which this alias points. Only that task gets further rounds.
          and exists (
              select from tasks other
              where other.batch_id = t.batch_id and other.site_id = any(array[t.site_id, s.alias_of])
                and (other.site_id <> t.site_id or other.id > t.id)
                and other.retried_at is null and other.state <> 'cancelled'
          )
        returning t.id
        "#,
        &due as _,
    )
    .all(tx)
    .await?;
    let again: Vec<_> = due.iter().filter(|id| !covered.contains(id)).copied().collect();
    let rounds = next(tx, &again).await?;
    Ok(RecrawlResult { due: u64::try_from(due.len()).unwrap_or(u64::MAX), rounds })
}

/// Makes one next round for each site of these tasks. Aliases of the same site share one round,
/// which belongs to that site. Returns the number of new rounds. The tasks must have ended.
pub async fn next(tx: &mut Tx<'_>, tasks: &[Locked<TaskId>]) -> Result<u64, Error> {
    sqlx::query!(
        r#"
        with again as (
            select t.batch_id, coalesce(s.alias_of, s.id) as site_id, max(t.round) as round
            from tasks t join sites s on s.id = t.site_id
            where t.id = any($1)
            group by 1, 2
        ), next as (
            select batch_id, site_id, 1 + greatest(round, (
                select max(t.round) from tasks t where t.batch_id = again.batch_id and t.site_id = again.site_id
            )) as round
            from again
        ), former as (
            select unnest($1::bigint[]) as id
            union
            select t.id from again join tasks t on t.batch_id = again.batch_id and t.site_id = again.site_id
        ), ended as (
            update tasks t set retried_at = now(), recrawl_at = null
            from former where t.id = former.id and t.retried_at is null
        )
        insert into tasks (batch_id, site_id, round, state, choice)
        select batch_id, site_id, round, case when b.strategy = any($2) then 'submitted'::task_state else 'located' end, b.choice
        from next join batches b on b.id = next.batch_id
        order by site_id
        -- Another transaction may have made this round in the meantime.
        on conflict (batch_id, site_id, round) do nothing
        "#,
        tasks as _,
        &distanced(),
    )
    .affected(tx)
    .await
}

/// Cancels the planned recrawls of these sites of a batch, and of their aliases. Returns the number
/// of tasks whose recrawl was cancelled.
pub async fn end_recrawls(conn: &mut PgConnection, batch: BatchId, sites: &[SiteId]) -> Result<u64, Error> {
    sqlx::query!(
        r#"
        with waiting as (
            select id from tasks
            where batch_id = $1 and recrawl_at is not null
              and (site_id = any($2) or site_id in (select id from sites where alias_of = any($2)))
            order by id
            for update
        )
        update tasks t set recrawl_at = null from waiting where t.id = waiting.id and t.recrawl_at is not null
        "#,
        batch.get(),
        sites as _,
    )
    .affected(conn)
    .await
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::model::{CrawlEnding, SessionId};
    use crate::store::batches::cancel_and_retry::{self, CancelResult};
    use crate::store::batches::{self};
    use crate::store::leases::outcomes::OutcomeAnswer;
    use crate::store::{fixtures, leases};

    /// A batch with an hourly recrawl, a batch without a recrawl, and an agent that has leased a
    /// site of each batch.
    struct Scene {
        pool: PgPool,
        agent: AgentId,
        session: SessionId,
        batch: BatchId,
        task: TaskId,
        once: TaskId,
    }

    impl Scene {
        async fn new(pool: PgPool) -> Self {
            let mut conn = pool.acquire().await.expect("connect");
            let (agent, session) = fixtures::crawler(&mut conn, "a").await;
            let batch = fixtures::batch(&mut conn, "hourly", "random").await;
            sqlx::query(r#"update batches set policy = policy || '{"recrawl_interval_ms": 3600000}'"#)
                .execute(&mut *conn)
                .await
                .expect("hourly");
            let other = fixtures::batch(&mut conn, "once", "random").await;
            let site = fixtures::site(&mut conn, "a.cn").await;
            let task = fixtures::assigned(&mut conn, batch, site, agent).await;
            let site = fixtures::site(&mut conn, "b.cn").await;
            let once = fixtures::assigned(&mut conn, other, site, agent).await;
            assert_eq!(fixtures::grant(&mut conn, agent, session).await.len(), 2);
            drop(conn);
            Self { pool, agent, session, batch, task, once }
        }

        async fn conn(&self) -> sqlx::pool::PoolConnection<sqlx::Postgres> {
            self.pool.acquire().await.expect("connect")
        }

        async fn execute(&self, sql: &'static str) {
            sqlx::query(sql).execute(&self.pool).await.expect("execute");
        }

        async fn end(&self, conn: &mut PgConnection, task: TaskId, ending: CrawlEnding) {
            let report = fixtures::report(task, fixtures::TOKEN, ending);
            let answer = fixtures::record(conn, self.agent, &report).await;
            assert!(matches!(answer, OutcomeAnswer::Accepted { .. }), "{answer:?}");
        }

        /// Makes recrawls due earlier by `time`, as if that time had passed.
        async fn pass(&self, time: &'static str) {
            sqlx::query("update tasks set recrawl_at = recrawl_at - $1::text::interval where recrawl_at is not null")
                .bind(time)
                .execute(&self.pool)
                .await
                .expect("let the time pass");
        }

        /// Runs a recrawl in a transaction of its own.
        async fn recrawl(&self) -> RecrawlResult {
            let mut tx = fixtures::begin(&self.pool).await;
            let made = recrawl(&mut tx, 10).await.expect("recrawl");
            tx.commit().await.expect("commit");
            made
        }

        async fn cancel(&self, tx: &mut Tx<'_>) -> CancelResult {
            let named = ["a.cn".parse().expect("a name")];
            cancel_and_retry::cancel(tx, self.batch, "hourly", &named).await.expect("cancel")
        }

        /// Each task's site, round and state, and whether a next round is planned.
        async fn rounds(&self) -> Vec<(String, i32, String, bool)> {
            sqlx::query_as(
                "select s.name, t.round, t.state::text, t.recrawl_at is not null
                 from tasks t join sites s on s.id = t.site_id join batches b on b.id = t.batch_id
                 where b.name = 'hourly' order by s.name, t.round",
            )
            .fetch_all(&self.pool)
            .await
            .expect("read the tasks")
        }
    }

    fn round(site: &str, round: i32, state: &str, next: bool) -> (String, i32, String, bool) {
        (site.to_owned(), round, state.to_owned(), next)
    }

    const ONE: RecrawlResult = RecrawlResult { due: 1, rounds: 1 };
    const NONE: RecrawlResult = RecrawlResult { due: 0, rounds: 0 };

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_site_goes_again_an_interval_after_its_crawl_ended_and_once(pool: PgPool) {
        let scene = Scene::new(pool).await;
        assert_eq!(scene.recrawl().await, NONE, "it is crawled");
        for task in [scene.task, scene.once] {
            scene.end(&mut *scene.conn().await, task, CrawlEnding::Complete).await;
        }
        scene.pass("59 minutes").await;
        assert_eq!(scene.recrawl().await, NONE, "not due");
        let progress = batches::progress(&mut *scene.conn().await, scene.batch).await.expect("progress");
        assert!(progress.next_recrawl.is_some() && progress.open() == 0, "{progress:?}");

        scene.pass("1 minute").await;
        assert_eq!(scene.recrawl().await, ONE);
        assert_eq!(scene.recrawl().await, NONE, "the second round has not ended");
        assert_eq!(scene.rounds().await, [round("a.cn", 1, "done", false), round("a.cn", 2, "located", false)]);
        let progress = batches::progress(&mut *scene.conn().await, scene.batch).await.expect("progress");
        assert_eq!((progress.located, progress.complete, progress.pages), (1, 0, 0), "{progress:?}");
        assert_eq!(batches::task_count(&mut *scene.conn().await, scene.batch).await.expect("count"), 1);
        let made: i64 = sqlx::query_scalar(
            "select count(*) from events e join tasks t on t.id = e.task_id where t.round = 2 and e.what = 'located'",
        )
        .fetch_one(&scene.pool)
        .await
        .expect("read the log");
        assert_eq!(made, 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_failed_goes_again_as_well_but_not_what_was_poison(pool: PgPool) {
        let scene = Scene::new(pool).await;
        scene.end(&mut *scene.conn().await, scene.task, CrawlEnding::Unreachable(None)).await;
        scene.pass("1 hour").await;
        assert_eq!(scene.recrawl().await, ONE);
        assert_eq!(scene.rounds().await, [round("a.cn", 1, "failed", false), round("a.cn", 2, "located", false)]);

        scene.execute(r#"update batches set policy = policy || '{"recrawl_interval_ms": 3600000}'"#).await;
        let mut tx = fixtures::begin(&scene.pool).await;
        let released = leases::release(&mut tx, scene.agent, scene.once, fixtures::TOKEN, Some("a panic"), 1).await;
        assert!(released.expect("release"));
        assert_eq!(fixtures::state(&mut tx, scene.once).await, "failed");
        tx.commit().await.expect("commit");
        scene.pass("1 year").await;
        assert_eq!(scene.recrawl().await, NONE);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_retry_takes_the_recrawls_place(pool: PgPool) {
        let scene = Scene::new(pool).await;
        scene.end(&mut *scene.conn().await, scene.task, CrawlEnding::Unreachable(None)).await;
        scene.pass("1 hour").await;
        let retrying = async |tx: &mut Tx<'_>| {
            let named = ["a.cn".parse().expect("a name")];
            cancel_and_retry::retry(tx, scene.batch, "hourly", &named).await.expect("retry").tasks
        };
        let mut tx = fixtures::begin(&scene.pool).await;
        assert_eq!(retrying(&mut tx).await, 1);
        assert_eq!(scene.recrawl().await, NONE, "somebody is at it");
        tx.commit().await.expect("commit");
        assert_eq!(scene.recrawl().await, NONE);
        assert_eq!(scene.rounds().await, [round("a.cn", 1, "failed", false), round("a.cn", 2, "located", false)]);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn two_that_look_at_once_make_one_round(pool: PgPool) {
        let scene = Scene::new(pool).await;
        scene.end(&mut *scene.conn().await, scene.task, CrawlEnding::Complete).await;
        scene.pass("1 hour").await;
        let mut one = fixtures::begin(&scene.pool).await;
        assert_eq!(recrawl(&mut one, 10).await.expect("recrawl"), ONE);
        assert_eq!(scene.recrawl().await, NONE, "it is the other's");
        one.commit().await.expect("commit");
        assert_eq!(scene.recrawl().await, NONE, "it has been made");
        assert_eq!(scene.rounds().await.len(), 2);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_cancelled_batch_is_not_crawled_again_whatever_happens_meanwhile(pool: PgPool) {
        let scene = Scene::new(pool).await;
        let cancel = async |tx: &mut Tx<'_>| scene.cancel(tx).await;
        // The outcome's transaction commits just before the cancellation.
        let mut ending = fixtures::begin(&scene.pool).await;
        scene.end(&mut ending, scene.task, CrawlEnding::Complete).await;
        let cancelled = fixtures::behind(&scene.pool, ending, cancel).await;
        assert_eq!(cancelled, CancelResult { ended: 1, recrawls: 1, ..CancelResult::default() });
        assert_eq!(scene.rounds().await, [round("a.cn", 1, "done", false)]);

        // The new round is made while the batch is cancelled.
        scene.execute("update tasks set recrawl_at = now() where round = 1 and state = 'done'").await;
        let mut making = fixtures::begin(&scene.pool).await;
        assert_eq!(recrawl(&mut making, 10).await.expect("recrawl"), ONE);
        let cancelled = fixtures::behind(&scene.pool, making, cancel).await;
        assert_eq!(cancelled, CancelResult { tasks: 1, ..CancelResult::default() });
        assert_eq!(scene.rounds().await, [round("a.cn", 1, "done", false), round("a.cn", 2, "cancelled", false)]);

        // In the other order, a recrawl skips tasks that another transaction is cancelling.
        scene
            .execute("update tasks set recrawl_at = now(), retried_at = null where round = 1 and state = 'done'")
            .await;
        let mut cancelling = fixtures::begin(&scene.pool).await;
        assert_eq!(scene.cancel(&mut cancelling).await.recrawls, 1);
        assert_eq!(scene.recrawl().await, NONE);
        cancelling.commit().await.expect("commit");
        assert_eq!(scene.recrawl().await, NONE);

        // An operator who names the site can retry its cancelled task.
        scene.execute("update tasks set retried_at = now() where round = 1").await;
        let named = ["a.cn".parse().expect("a name")];
        let mut tx = fixtures::begin(&scene.pool).await;
        let retried = cancel_and_retry::retry(&mut tx, scene.batch, "hourly", &named).await.expect("retry");
        assert_eq!(retried.tasks, 1);
        tx.commit().await.expect("commit");
        assert_eq!(scene.rounds().await.last(), Some(&round("a.cn", 3, "located", false)));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn names_of_one_site_are_crawled_again_as_one(pool: PgPool) {
        let scene = Scene::new(pool).await;
        let mut conn = scene.conn().await;
        let site = fixtures::site(&mut conn, "www.a.cn").await;
        let alias = fixtures::assigned(&mut conn, scene.batch, site, scene.agent).await;
        scene.end(&mut conn, scene.task, CrawlEnding::Complete).await;
        assert_eq!(fixtures::grant(&mut conn, scene.agent, scene.session).await.len(), 1);
        scene.end(&mut conn, alias, CrawlEnding::Complete).await;
        drop(conn);
        scene
            .execute("update sites set alias_of = (select id from sites where name = 'a.cn') where name = 'www.a.cn'")
            .await;
        scene.pass("1 hour").await;
        assert_eq!(scene.recrawl().await, RecrawlResult { due: 2, rounds: 1 });
        let rounds =
            [round("a.cn", 1, "done", false), round("a.cn", 2, "located", false), round("www.a.cn", 1, "done", false)];
        assert_eq!(scene.rounds().await, rounds);

        // `www.a.cn` is an alias of `a.cn`. Simulates that the task of `a.cn` was cancelled because
        // the alias's crawl had begun. The next round belongs to `a.cn`.
        scene.execute("delete from events").await;
        scene.execute("update tasks set state = 'cancelled' where round = 2").await;
        scene
            .execute(
                "update tasks t set recrawl_at = now() from sites s where s.id = t.site_id and s.name = 'www.a.cn'",
            )
            .await;
        assert_eq!(scene.recrawl().await, ONE);
        assert_eq!(scene.rounds().await[2], round("a.cn", 3, "located", false));
        assert_eq!(batches::task_count(&mut *scene.conn().await, scene.batch).await.expect("count"), 1);
    }
}
