//! Removes a batch with its tasks and their dependent rows. Keeps the sites and their measurements,
//! because other batches share them. A site that is submitted again then needs no new measurement.
//!
//! Invariants: a batch that is being removed gets no new task. The task of an active crawl is
//! deleted only after the agent has been told to stop the crawl.

use std::collections::HashSet;

use sqlx::PgConnection;

use crate::model::{BatchId, SiteId, TaskId};

use super::changes::{PieceResult, ReadTask};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::{Error, Locked, Tx};

/// Maximum number of discovered hosts removed by a piece, which takes a few tens of milliseconds.
const HOST_PIECE: i64 = 10_000;

/// Removes those of the tasks that no other transaction has locked, and that no agent crawls.
pub(super) async fn remove_unlocked(tx: &mut Tx<'_>, batch: BatchId, tasks: &[ReadTask]) -> Result<PieceResult, Error> {
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    let free = sqlx::query_scalar!(
        r#"
        select t.id from tasks t
        where t.id = any($1) and t.state::text <> 'leased'
          and not exists (
              select from leases l join sessions s on s.id = l.session_id
              where l.task_id = t.id and l.state in ('revoked', 'overdue') and l.revocation_sent_at is null and s.state = 'active'
          )
        order by t.id
        for update of t skip locked
        "#,
        &ids as _,
    );
    let free: Vec<_> = free.locked(tx).await?;
    remove_tasks(tx, &free).await?;
    let free: HashSet<Locked<TaskId>> = free.into_iter().collect();
    let (gone, left): (Vec<&ReadTask>, Vec<&ReadTask>) = tasks.iter().partition(|task| free.contains(&task.id));
    let sites: Vec<SiteId> = gone.iter().map(|task| task.site).collect();
    sqlx::query!("delete from discovered_hosts where site_id = any($1) and batch_id = $2", &sites as _, batch.get())
        .run(tx)
        .await?;
    let changed = u64::try_from(gone.iter().filter(|task| task.newest).count()).unwrap_or(u64::MAX);
    Ok(PieceResult { changed, left: left.iter().map(|task| task.site).collect(), ..PieceResult::default() })
}

/// Removes tasks with their dependent rows. Returns the row numbers of the sets of excluded
/// agents to which the tasks' assignments referred.
pub(in crate::store) async fn remove_tasks(
    tx: &mut Tx<'_>,
    tasks: &[Locked<TaskId>],
) -> Result<Vec<Option<i64>>, Error> {
    sqlx::query!("delete from events where task_id = any($1)", tasks as _).run(tx).await?;
    sqlx::query!("delete from outcomes where task_id = any($1)", tasks as _).run(tx).await?;
    sqlx::query!("delete from leases where task_id = any($1)", tasks as _).run(tx).await?;
    // An ended task has no hold. A cascade would count the ended holds once for each removed task.
    sqlx::query!("delete from task_holds where task_id = any($1)", tasks as _).run(tx).await?;
    // One statement deletes tasks and assignments, because they reference each other.
    let exclusions = sqlx::query_scalar!(
        r#"
        with choices as (delete from assignments where task_id = any($1) returning exclusions_id),
        removed as (delete from tasks where id = any($1))
        select distinct exclusions_id from choices
        "#,
        tasks as _,
    );
    exclusions.all(tx).await
}

pub(super) async fn has_tasks(conn: &mut PgConnection, batch: BatchId) -> Result<bool, Error> {
    let left = sqlx::query_scalar!(r#"select exists (select from tasks where batch_id = $1) as "left!""#, batch.get());
    left.one(conn).await
}

/// Removes the batch itself, which has no more tasks. Returns `false` if more pieces are needed.
pub(super) async fn finish(conn: &mut PgConnection, batch: BatchId) -> Result<bool, Error> {
    // Deletes the discovered hosts of sites whose tasks retention has already deleted.
    let hosts = sqlx::query!(
        r#"
        delete from discovered_hosts
        where (batch_id, host, site_id) in (
            select batch_id, host, site_id from discovered_hosts where batch_id = $1 limit $2 for update skip locked
        )
        "#,
        batch.get(),
        HOST_PIECE,
    );
    hosts.run(conn).await?;
    let left = sqlx::query_scalar!(
        r#"select exists (select from discovered_hosts where batch_id = $1) as "left!""#,
        batch.get()
    );
    if left.one(conn).await? {
        return Ok(false);
    }
    sqlx::query!("delete from exclusions where batch_id = $1", batch.get()).run(conn).await?;
    sqlx::query!("delete from batch_constraints where batch_id = $1", batch.get()).run(conn).await?;
    sqlx::query!("delete from submissions where batch_id = $1", batch.get()).run(conn).await?;
    sqlx::query!("delete from batches where id = $1", batch.get()).run(conn).await?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use crate::store::batches::changes::{self, BeginError, ChangeKind};
    use crate::store::batches::pieces::{self, Step};
    use crate::store::tasks::measuring_and_rounds;
    use crate::store::{batches, fixtures, leases};

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

        let batch = batches::by_name(&mut conn, "autumn").await.expect("look").expect("it is there");
        let refused =
            fixtures::begin_change(&mut conn, &batch, ChangeKind::Remove, false).await.expect_err("under way");
        assert!(matches!(refused, BeginError::Open { open: 2, .. }), "{refused}");
        assert!(!batches::by_name(&mut conn, "autumn").await.expect("look").expect("it is there").removing);

        fixtures::begin_change(&mut conn, &batch, ChangeKind::Remove, true).await.expect("begin");
        let steps = async || {
            let mut conn = pool.acquire().await.expect("connect");
            loop {
                let piece = fixtures::piece(&mut conn, autumn).await.expect("it is unfinished");
                if piece.step != Step::Worked {
                    return piece.step;
                }
            }
        };
        assert_eq!(steps().await, Step::Waits, "the agent has not been told to stop");
        let told = leases::take_revoked(&mut conn, session).await.expect("take");
        assert_eq!(told.iter().map(|(_, token)| *token).collect::<Vec<_>>(), [fixtures::TOKEN; 2]);
        // A round made while the batch was being removed is cancelled and removed too.
        sqlx::query("insert into tasks (batch_id, site_id, round) values ($1, $2, 2)")
            .bind(autumn.get())
            .bind(own.get())
            .execute(&mut *conn)
            .await
            .expect("a round");
        assert_eq!(steps().await, Step::Finished);
        assert!(batches::by_name(&mut conn, "autumn").await.expect("look").is_none());
        for (what, left) in
            [("tasks", 1), ("assignments", 0), ("leases", 0), ("sites", 3), ("discovered_hosts", 3), ("changes", 0)]
        {
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
        let batch = batches::by_name(&mut conn, "autumn").await.expect("look").expect("it is there");
        let change = fixtures::begin_change(&mut conn, &batch, ChangeKind::Remove, false).await.expect("begin");
        assert_eq!(change.sites, 3500);
        assert_eq!(
            fixtures::tx(&mut conn, async |tx| measuring_and_rounds::recrawl(tx, 100).await).await.expect("look").due,
            0,
            "it is going"
        );
        let mut tx = fixtures::begin(&pool).await;
        let first = pieces::piece_of(&mut tx, autumn).await.expect("a piece").expect("it is unfinished");
        assert_eq!(first.step, Step::Worked);
        let done = changes::of_batch(&mut tx, autumn).await.expect("look").expect("the change");
        assert_eq!((done.changed, done.read), (1000, 1000));
        // Before the first piece commits, the agent gets a lease of a site that both batches
        // contain, and the batch `winter` gets a new task.
        fixtures::execute(&mut conn, "set lock_timeout = '2s'").await;
        assert_eq!(fixtures::grant(&mut conn, agent, session).await.len(), 1);
        let new = fixtures::site(&mut conn, "new.cn").await;
        fixtures::task(&mut conn, winter, new, "submitted").await;
        tx.commit().await.expect("commit");
        while let Some(piece) = fixtures::piece(&mut conn, autumn).await {
            assert_ne!(piece.step, Step::Waits);
        }
        assert!(batches::by_name(&mut conn, "autumn").await.expect("look").is_none());
    }
}
