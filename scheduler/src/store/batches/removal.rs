//! Removes a batch with its tasks and their dependent rows. Keeps the sites and their measurements,
//! because other batches share them. A site that is submitted again then needs no new measurement.
//!
//! A removal consists of steps. Invariants: a batch that is being removed gets no new task. A step
//! is one short transaction that locks only ended tasks of the batch. If a removal is interrupted
//! between two steps, the next removal continues with the tasks that are left. The task of an
//! active crawl is deleted only after the agent has been told to stop the crawl.

use sqlx::PgConnection;

use crate::model::{BatchId, SiteId, TaskId};

use super::cancel_and_retry::{self, ChangeError, ChangeScope};
use crate::store::Error;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::{Unsigned, whole};

/// Maximum number of tasks removed by a step. With about ten rows per task, a step takes a few tens
/// of milliseconds.
const STEP: i64 = 1_000;
/// Maximum number of discovered hosts removed by a step, which takes a few tens of milliseconds.
const HOST_STEP: i64 = 10_000;

#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    #[error("batch {batch} has {open} {} not ended: wait for them (`landfall batches wait {batch}`), or give --cancel", had(*.open))]
    Open { batch: String, open: u64 },
    #[error("remove a batch")]
    Store(#[from] Error),
}

const fn had(open: u64) -> &'static str {
    if open == 1 { "site that has" } else { "sites that have" }
}

/// The result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemovalStep {
    /// The number of removed tasks, and where the next step begins.
    Removed(u64, TaskPosition),
    /// The remaining tasks cannot be removed yet: an agent must first be told to stop, or another
    /// transaction has locked them.
    Waits,
    Done,
}

/// The key of the last task that a step of a removal read. The next step continues after this task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TaskPosition {
    site: i64,
    round: u32,
}

/// Begins or continues a removal; from then on, no task can be added to the batch. Returns the
/// batch's number of tasks. Run in a transaction.
pub async fn begin(conn: &mut PgConnection, batch: BatchId, name: &str) -> Result<u64, RemoveError> {
    // Waits for a concurrent submission, so that its tasks are counted too.
    sqlx::query!("update batches set removing_since = coalesce(removing_since, now()) where id = $1", batch.get())
        .run(conn)
        .await?;
    let counted = sqlx::query!(
        r#"
        select count(*) as "all!: Unsigned<u64>", count(*) filter (where state not in ('done', 'failed', 'cancelled')) as "open!: Unsigned<u64>"
        from tasks where batch_id = $1
        "#,
        batch.get(),
    )
    .one(conn)
    .await?;
    let open: u64 = counted.open.0;
    if open > 0 {
        return Err(RemoveError::Open { batch: name.to_owned(), open });
    }
    Ok(counted.all.0)
}

/// Removes the next tasks, and, after the last one, the batch. Run in a transaction.
pub async fn step(
    conn: &mut PgConnection,
    batch: BatchId,
    name: &str,
    from: TaskPosition,
) -> Result<RemovalStep, ChangeError> {
    let going = sqlx::query!(
        r#"
        select t.id, t.site_id, t.round from tasks t
        where t.batch_id = $1 and (t.site_id, t.round) > ($2, $3) and t.state in ('done', 'failed', 'cancelled')
          and not exists (
              select from leases l join sessions s on s.id = l.session_id
              where l.task_id = t.id and l.state in ('revoked', 'overdue') and l.revocation_sent_at is null and s.state = 'active'
          )
        order by t.site_id, t.round
        limit $4
        for update of t skip locked
        "#,
        batch.get(),
        from.site,
        whole::<i32, _>(from.round),
        STEP,
    )
    .all(conn)
    .await?;
    let Some(last) = going.last() else {
        return if from == TaskPosition::default() {
            finish(conn, batch, name).await
        } else {
            Ok(RemovalStep::Removed(0, TaskPosition::default()))
        };
    };
    let place = TaskPosition { site: last.site_id.get(), round: last.round.0 };
    let tasks: Vec<TaskId> = going.iter().map(|task| task.id).collect();
    remove_tasks(conn, &tasks).await?;
    let sites: Vec<SiteId> = going.iter().map(|task| task.site_id).collect();
    sqlx::query!("delete from discovered_hosts where site_id = any($1) and batch_id = $2", &sites as _, batch.get())
        .run(conn)
        .await?;
    Ok(RemovalStep::Removed(u64::try_from(tasks.len()).unwrap_or(u64::MAX), place))
}

/// Removes ended tasks with their dependent rows. Returns the row numbers of the sets of excluded
/// agents to which the tasks' assignments referred. The caller has locked the tasks.
pub(in crate::store) async fn remove_tasks(
    conn: &mut PgConnection,
    tasks: &[TaskId],
) -> Result<Vec<Option<i64>>, Error> {
    sqlx::query!("delete from events where task_id = any($1)", tasks as _).run(conn).await?;
    sqlx::query!("delete from outcomes where task_id = any($1)", tasks as _).run(conn).await?;
    sqlx::query!("delete from leases where task_id = any($1)", tasks as _).run(conn).await?;
    // An ended task has no hold. A cascade would count the ended holds once for each removed task.
    sqlx::query!("delete from task_holds where task_id = any($1)", tasks as _).run(conn).await?;
    // One statement deletes tasks and assignments, because they reference each other.
    let exclusions = sqlx::query_scalar!(
        r#"
        with choices as (delete from assignments where task_id = any($1) returning exclusions_id),
        removed as (delete from tasks where id = any($1))
        select distinct exclusions_id from choices
        "#,
        tasks as _,
    );
    exclusions.all(conn).await
}

/// Removes the batch itself if it has no more tasks.
async fn finish(conn: &mut PgConnection, batch: BatchId, name: &str) -> Result<RemovalStep, ChangeError> {
    let left = sqlx::query_scalar!(r#"select exists (select from tasks where batch_id = $1) as "left!""#, batch.get())
        .one(conn)
        .await?;
    if left {
        // The remaining tasks belong to a round that was being made when the removal began, so they
        // may be open.
        cancel_and_retry::cancel(conn, batch, name, &ChangeScope::All).await?;
        return Ok(RemovalStep::Waits);
    }
    // Deletes the discovered hosts of sites whose tasks retention has already deleted.
    let hosts = sqlx::query!(
        r#"
        delete from discovered_hosts
        where (batch_id, host, site_id) in (
            select batch_id, host, site_id from discovered_hosts where batch_id = $1 limit $2 for update skip locked
        )
        "#,
        batch.get(),
        HOST_STEP,
    );
    hosts.run(conn).await?;
    let left = sqlx::query_scalar!(
        r#"select exists (select from discovered_hosts where batch_id = $1) as "left!""#,
        batch.get()
    );
    if left.one(conn).await? {
        return Ok(RemovalStep::Removed(0, TaskPosition::default()));
    }
    sqlx::query!("delete from exclusions where batch_id = $1", batch.get()).run(conn).await?;
    sqlx::query!("delete from batch_constraints where batch_id = $1", batch.get()).run(conn).await?;
    sqlx::query!("delete from submissions where batch_id = $1", batch.get()).run(conn).await?;
    sqlx::query!("delete from batches where id = $1", batch.get()).run(conn).await?;
    Ok(RemovalStep::Done)
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::store::fixtures;
    use crate::store::tasks::measuring_and_rounds;
    use crate::store::{batches, leases};

    /// Runs steps until the batch is removed or a step has to wait.
    async fn steps(pool: &PgPool, batch: BatchId) -> (u64, RemovalStep) {
        let (mut removed, mut place) = (0, TaskPosition::default());
        loop {
            let mut tx = pool.begin().await.expect("begin");
            let step = step(&mut tx, batch, "autumn", place).await.expect("a step");
            tx.commit().await.expect("commit");
            match step {
                RemovalStep::Removed(tasks, next) => (removed, place) = (removed + tasks, next),
                RemovalStep::Waits | RemovalStep::Done => return (removed, step),
            }
        }
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_batch_goes_with_all_that_hangs_on_it_and_its_sites_stay(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let (autumn, winter) = (
            fixtures::batch(&mut conn, "autumn", "random").await,
            fixtures::batch(&mut conn, "winter", "random").await,
        );
        let (shared, own) = (fixtures::site(&mut conn, "a.cn").await, fixtures::site(&mut conn, "b.cn").await);
        for site in [shared, own] {
            fixtures::assigned(&mut conn, autumn, site, agent).await;
        }
        assert_eq!(fixtures::grant(&mut conn, agent, session).await.len(), 2);
        fixtures::task(&mut conn, winter, shared, "submitted").await;
        fixtures::site(&mut conn, "without-task.cn").await;
        let link = "insert into discovered_hosts (batch_id, host, site_id) select $1, 'x.cn', id from sites";
        for batch in [autumn, winter] {
            fixtures::execute_for(&mut conn, link, batch.get()).await;
        }

        let mut tx = pool.begin().await.expect("begin");
        let refused = begin(&mut tx, autumn, "autumn").await.expect_err("it is under way").to_string();
        assert!(refused.starts_with("batch autumn has 2 sites that have not ended: "), "{refused}");
        tx.rollback().await.expect("roll back");
        assert!(!batches::by_name(&mut conn, "autumn").await.expect("look").expect("it is there").removing);

        cancel_and_retry::cancel(&mut conn, autumn, "autumn", &ChangeScope::All).await.expect("cancel");
        assert_eq!(begin(&mut conn, autumn, "autumn").await.expect("begin"), 2);
        assert_eq!(steps(&pool, autumn).await, (0, RemovalStep::Waits), "the agent has not been told to stop");
        let told = leases::take_revoked(&mut conn, session).await.expect("take");
        assert_eq!(told.iter().map(|(_, token)| *token).collect::<Vec<_>>(), [fixtures::TOKEN; 2]);
        // A round made while the batch was being removed is cancelled and removed too.
        sqlx::query("insert into tasks (batch_id, site_id, round) values ($1, $2, 2)")
            .bind(autumn.get())
            .bind(own.get())
            .execute(&mut *conn)
            .await
            .expect("a round");
        assert_eq!(steps(&pool, autumn).await, (2, RemovalStep::Waits));
        assert_eq!(steps(&pool, autumn).await, (1, RemovalStep::Done));
        assert!(batches::by_name(&mut conn, "autumn").await.expect("look").is_none());
        for (what, left) in [("tasks", 1), ("assignments", 0), ("leases", 0), ("sites", 3), ("discovered_hosts", 3)] {
            let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select count(*) from {what}")))
                .fetch_one(&mut *conn)
                .await
                .expect("count");
            assert_eq!(count, left, "{what}");
        }
        let events = "select count(*) from events where task_id is not null and task_id not in (select id from tasks)";
        assert_eq!(sqlx::query_scalar::<_, i64>(events).fetch_one(&mut *conn).await.expect("count"), 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn others_work_on_while_a_large_batch_goes_and_none_of_it_is_crawled_again(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let (autumn, winter) = (
            fixtures::batch(&mut conn, "autumn", "random").await,
            fixtures::batch(&mut conn, "winter", "random").await,
        );
        for fill in [
            "insert into sites (name) select 's' || n || '.cn' from generate_series(1, 3500) n",
            "insert into tasks (batch_id, site_id, state, recrawl_at)
             select b.id, s.id, 'done', now() from batches b, sites s where b.name = 'autumn'",
        ] {
            sqlx::query(fill).execute(&mut *conn).await.expect("fill");
        }
        let shared = fixtures::site(&mut conn, "s1.cn").await;
        fixtures::assigned(&mut conn, winter, shared, agent).await;
        assert_eq!(begin(&mut conn, autumn, "autumn").await.expect("begin"), 3500);
        assert_eq!(measuring_and_rounds::recrawl(&mut conn, 100).await.expect("look").due, 0, "it is going");
        let mut tx = pool.begin().await.expect("begin");
        let first = step(&mut tx, autumn, "autumn", TaskPosition::default()).await.expect("a step");
        assert!(matches!(first, RemovalStep::Removed(1000, _)), "{first:?}");
        // Before the first step commits, the agent gets a lease of a site that both batches
        // contain, and the batch `winter` gets a new task.
        fixtures::execute(&mut conn, "set lock_timeout = '2s'").await;
        assert_eq!(fixtures::grant(&mut conn, agent, session).await.len(), 1);
        let new = fixtures::site(&mut conn, "new.cn").await;
        fixtures::task(&mut conn, winter, new, "submitted").await;
        tx.commit().await.expect("commit");
        assert_eq!(steps(&pool, autumn).await, (2500, RemovalStep::Done));
    }
}
