//! Does changes of whole batches in pieces of bounded size, each in a short transaction.
//!
//! Invariants: a piece never waits for a task that another transaction has locked: it leaves the
//! task's site, and later pieces come back to it. The position of a change is stored with each
//! piece, so that an interrupted change continues where it stopped.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, SiteId};

use super::changes::{ChangeKind, PieceResult, ReadTask, open_tasks};
use super::{cancel_and_retry, removal};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::{Unsigned, whole};
use crate::store::{Error, Tx};

impl ChangeKind {
    /// Number of tasks that a piece reads. A piece takes about a tenth of a second, so that no
    /// agent's message waits noticeably for a task that the piece has locked.
    const fn piece(self) -> i64 {
        match self {
            Self::Cancel => 2_000,
            Self::Retry | Self::Remove => 1_000,
        }
    }
}

/// Maximum number of sites that are remembered because their tasks were locked. If more are locked,
/// all tasks are read again.
const LEFT_AT_MOST: usize = 1_000;

/// What a piece did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    pub batch: BatchId,
    pub kind: ChangeKind,
    /// Whether the change is finished, or can proceed at once.
    pub step: Step,
    /// The agents whose leases were revoked. They must be notified.
    pub agents: Vec<AgentId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    Worked,
    /// Every remaining task is locked by another transaction, or its agent must first be told to
    /// stop.
    Waits,
    Finished,
}

/// The stored position of an unfinished change.
#[derive(Debug)]
struct Position {
    batch_id: BatchId,
    kind: ChangeKind,
    asked_at: DateTime<Utc>,
    site_id: i64,
    round: Unsigned<u32>,
    left_sites: Vec<SiteId>,
    left_more: bool,
}

/// The batches with an unfinished change.
pub async fn unfinished(conn: &mut PgConnection) -> Result<Vec<BatchId>, Error> {
    sqlx::query_scalar!("select batch_id from changes where finished_at is null order by batch_id").all(conn).await
}

/// Does the next piece of this batch's change. Returns `None` if the change is finished, or if
/// another transaction is doing a piece of it.
pub async fn piece_of(tx: &mut Tx<'_>, batch: BatchId) -> Result<Option<Piece>, Error> {
    let found = sqlx::query_as!(
        Position,
        r#"
        select batch_id, kind, asked_at, site_id, round, left_sites, left_more
        from changes where batch_id = $1 and finished_at is null
        for no key update skip locked
        "#,
        batch.get(),
    );
    match found.optional(tx).await? {
        Some(position) => Ok(Some(piece(tx, position).await?)),
        None => Ok(None),
    }
}

async fn piece(tx: &mut Tx<'_>, position: Position) -> Result<Piece, Error> {
    let Position { batch_id: batch, kind, .. } = position;
    // Tasks are never waited for. The limit is for rows that someone locks by hand. By outdated
    // statistics, the planner would read the whole table of tasks for each piece.
    let settings = sqlx::query!(
        r#"
        select set_config('lock_timeout', '1s', true) as timeout, set_config('enable_seqscan', 'off', true) as scan,
               set_config('jit', 'off', true) as jit
        "#
    );
    settings.one(tx).await?;
    if kind == ChangeKind::Retry {
        return proceed(tx, position, kind.piece()).await;
    }
    let mut begun = cancel_and_retry::cancel_begun(tx, batch, kind).await?;
    let (cancelled, agents) = (begun.changed, std::mem::take(&mut begun.agents));
    if cancelled > 0 {
        // A removal counts the task later, when it is removed.
        let changed = if kind == ChangeKind::Cancel { cancelled } else { 0 };
        store(tx, batch, &PieceResult { changed, ..begun }, 0).await?;
    }
    let rest = kind.piece().saturating_sub_unsigned(cancelled);
    if rest <= 0 {
        return Ok(Piece { batch, kind, step: Step::Worked, agents });
    }
    // Agents are being chosen for other tasks of the batch, so these may not wait until no task has
    // an agent.
    let mut piece = proceed(tx, position, rest).await?;
    if cancelled > 0 && piece.step == Step::Waits {
        piece.step = Step::Worked;
    }
    piece.agents.extend(agents);
    Ok(piece)
}

/// Changes at most `limit` tasks after the position.
async fn proceed(tx: &mut Tx<'_>, position: Position, limit: i64) -> Result<Piece, Error> {
    let Position { batch_id: batch, kind, .. } = position;
    let tasks = read(tx, &position, limit).await?;
    if tasks.is_empty() && !position.left_sites.is_empty() && !position.left_more {
        return again(tx, position).await;
    }
    let Some(last) = tasks.last() else { return end(tx, position).await };
    let (site, round) = (last.site, last.round);
    let sites = tasks.iter().filter(|task| task.newest).count();
    let mut done = change(tx, &position, &tasks).await?;
    let agents = std::mem::take(&mut done.agents);
    let mut left: BTreeSet<SiteId> = position.left_sites.into_iter().collect();
    left.append(&mut done.left);
    let more = position.left_more || left.len() > LEFT_AT_MOST;
    let left: Vec<SiteId> = left.into_iter().take(LEFT_AT_MOST).collect();
    sqlx::query!(
        "update changes set site_id = $2, round = $3, left_sites = $4, left_more = $5 where batch_id = $1",
        batch.get(),
        site.get(),
        whole::<i32, _>(round.0),
        &left as _,
        more,
    )
    .run(tx)
    .await?;
    store(tx, batch, &done, sites).await?;
    Ok(Piece { batch, kind, step: Step::Worked, agents })
}

/// Adds the numbers of a piece to those of its change.
async fn store(conn: &mut PgConnection, batch: BatchId, done: &PieceResult, sites: usize) -> Result<(), Error> {
    sqlx::query!(
        r#"
        update changes set read = read + $2, changed = changed + $3, leases = leases + $4, recrawls = recrawls + $5
        where batch_id = $1
        "#,
        batch.get(),
        whole::<i64, _>(sites),
        whole::<i64, _>(done.changed),
        whole::<i64, _>(done.leases),
        whole::<i64, _>(done.recrawls),
    )
    .run(conn)
    .await
}

/// Selects tasks of the batch for a change. The last literal says which ones.
macro_rules! select_tasks {
    ($position:expr, $which:literal, $($parameter:expr),*) => {
        sqlx::query_as!(
            ReadTask,
            r#"
            select t.id, t.site_id as site, t.round, t.retried_at is null as "newest!",
                   -- Only a retry needs to know whether the site is an alias.
                   (select s.alias_of from sites s where s.id = t.site_id and $2::text = 'retry') as "alias_of: SiteId",
                   case $2::text
                       when 'cancel' then t.state not in ('done', 'failed', 'cancelled') or t.recrawl_at is not null
                       when 'retry' then t.state = 'failed' and t.retried_at is null and t.state_since <= $3
                       else true
                   end as "meant!"
            from tasks t
            where t.batch_id = $1
            "# + $which,
            $position.batch_id.get(),
            $position.kind.name(),
            $position.asked_at,
            $($parameter),*
        )
    };
}

/// The next tasks after the position. Reads all tasks of the batch in the order of their key, so
/// that the cost of a piece does not depend on the number of tasks that the change concerns.
async fn read(conn: &mut PgConnection, position: &Position, limit: i64) -> Result<Vec<ReadTask>, Error> {
    let tasks = select_tasks!(
        position,
        "and (t.site_id, t.round) > ($4, $5) order by t.site_id, t.round limit $6",
        position.site_id,
        whole::<i32, _>(position.round.0),
        limit
    );
    tasks.all(conn).await
}

/// The tasks of the sites that were left.
async fn read_left(conn: &mut PgConnection, position: &Position) -> Result<Vec<ReadTask>, Error> {
    let tasks =
        select_tasks!(position, "and t.site_id = any($4) order by t.site_id, t.round", &position.left_sites as _);
    tasks.all(conn).await
}

/// Changes those of the read tasks that are meant and that no other transaction has locked.
async fn change(tx: &mut Tx<'_>, position: &Position, tasks: &[ReadTask]) -> Result<PieceResult, Error> {
    match position.kind {
        ChangeKind::Cancel => cancel_and_retry::cancel_unlocked(tx, tasks).await,
        ChangeKind::Retry => cancel_and_retry::retry_unlocked(tx, position.batch_id, tasks).await,
        ChangeKind::Remove => removal::remove_unlocked(tx, position.batch_id, tasks).await,
    }
}

/// After the last task was read: tries the tasks of the sites that were left.
async fn again(tx: &mut Tx<'_>, position: Position) -> Result<Piece, Error> {
    let tasks = read_left(tx, &position).await?;
    let mut done = change(tx, &position, &tasks).await?;
    let left: Vec<SiteId> = std::mem::take(&mut done.left).into_iter().collect();
    let Position { batch_id: batch, kind, left_sites: before, .. } = position;
    sqlx::query!("update changes set left_sites = $2 where batch_id = $1", batch.get(), &left as _).run(tx).await?;
    store(tx, batch, &done, 0).await?;
    let step = if left.len() == before.len() { Step::Waits } else { Step::Worked };
    Ok(Piece { batch, kind, step, agents: done.agents })
}

/// After the last task was read and no site was left: finishes the change, or begins again with the
/// first task if tasks must be read again.
async fn end(tx: &mut Tx<'_>, position: Position) -> Result<Piece, Error> {
    let Position { batch_id: batch, kind, left_more, .. } = position;
    let piece = |step| Piece { batch, kind, step, agents: Vec::new() };
    let rest = match kind {
        _ if left_more => true,
        // A recrawl or a submission that was being made may have added tasks behind the position.
        ChangeKind::Cancel => open_tasks(tx, batch).await? > 0,
        ChangeKind::Retry => false,
        ChangeKind::Remove => removal::has_tasks(tx, batch).await?,
    };
    if rest {
        sqlx::query!(
            "update changes set site_id = 0, round = 0, left_sites = default, left_more = false where batch_id = $1",
            batch.get()
        )
        .run(tx)
        .await?;
        return Ok(piece(Step::Worked));
    }
    if kind == ChangeKind::Remove {
        return Ok(piece(if removal::finish(tx, batch).await? { Step::Finished } else { Step::Worked }));
    }
    sqlx::query!("update changes set finished_at = now() where batch_id = $1", batch.get()).run(tx).await?;
    Ok(piece(Step::Finished))
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::model::{CrawlEnding, TaskId};
    use crate::store::batches::Batch;
    use crate::store::batches::changes::{Change, of_batch};
    use crate::store::{batches, fixtures};

    /// A batch of 2,500 submitted sites, whose names are s1.cn, s2.cn and so on.
    async fn large(conn: &mut PgConnection) -> Batch {
        fixtures::batch(conn, "large", "random").await;
        fixtures::execute(conn, "insert into sites (name) select 's' || n || '.cn' from generate_series(1, 2500) n")
            .await;
        fixtures::execute(
            conn,
            "insert into tasks (batch_id, site_id) select b.id, s.id from batches b, sites s where b.name = 'large'",
        )
        .await;
        batches::by_name(conn, "large").await.expect("look").expect("the batch")
    }

    async fn to_end(conn: &mut PgConnection, batch: BatchId) -> Step {
        loop {
            match fixtures::piece(conn, batch).await.expect("it is unfinished").step {
                Step::Worked => {}
                step => return step,
            }
        }
    }

    async fn states(conn: &mut PgConnection) -> Vec<(String, i64)> {
        fixtures::rows(conn, "select state::text, count(*) from tasks group by 1 order by 1").await
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_locked_by_hand_delays_only_itself(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let batch = large(&mut conn).await;
        let mut hand = fixtures::begin(&pool).await;
        let locked: i64 = fixtures::scalar(
            &mut hand,
            "select id from tasks where id = (select id from tasks order by id offset 7 limit 1) for update",
        )
        .await;
        fixtures::execute(&mut conn, "set lock_timeout = '2s'").await;
        let change = fixtures::begin_change(&mut conn, &batch, ChangeKind::Cancel, false).await.expect("begin");
        assert_eq!(to_end(&mut conn, batch.id).await, Step::Waits);
        assert_eq!(states(&mut conn).await, [("cancelled".to_owned(), 2499), ("submitted".to_owned(), 1)]);
        assert_eq!(to_end(&mut conn, batch.id).await, Step::Waits, "it is still locked");
        hand.rollback().await.expect("roll back");
        assert_eq!(to_end(&mut conn, batch.id).await, Step::Finished);
        assert_eq!(fixtures::state(&mut conn, TaskId::new(locked)).await, "cancelled");
        let change = Change { finished: true, read: 2500, changed: 2500, ..change };
        assert_eq!(of_batch(&mut conn, batch.id).await.expect("look"), Some(change));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn tasks_of_a_batch_are_not_leased_from_the_moment_in_which_it_is_cancelled(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        let other = fixtures::batch(&mut conn, "other", "random").await;
        fixtures::batch(&mut conn, "b", "random").await;
        let batch = batches::by_name(&mut conn, "b").await.expect("look").expect("the batch");
        let tasks = fixtures::queue(&mut conn, batch.id, agent, &["a.cn", "b.cn", "c.cn"]).await;
        let others = fixtures::queue(&mut conn, other, agent, &["d.cn"]).await;
        assert_eq!(fixtures::grant(&mut conn, agent, session).await.len(), 2);
        fixtures::complete(&mut conn, agent, tasks[0]).await;
        let change = fixtures::begin_change(&mut conn, &batch, ChangeKind::Cancel, false).await.expect("begin");
        let granted = fixtures::grant(&mut conn, agent, session).await;
        assert_eq!(granted.iter().map(|(task, _)| *task).collect::<Vec<_>>(), others, "the slot is the other batch's");
        let piece = fixtures::piece(&mut conn, batch.id).await.expect("it is unfinished");
        assert_eq!((piece.step, piece.agents), (Step::Worked, vec![agent]));
        assert_eq!(fixtures::state(&mut conn, tasks[2]).await, "cancelled");
        assert_eq!(to_end(&mut conn, batch.id).await, Step::Finished);
        let done = of_batch(&mut conn, batch.id).await.expect("look").expect("the change");
        assert_eq!((done.number, done.changed, done.leases, done.sites), (change.number, 2, 1, 3));
        assert_eq!(fixtures::piece(&mut conn, batch.id).await, None);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn two_operators_get_one_change_or_are_told_of_the_other(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let batch = large(&mut conn).await;
        fixtures::execute(&mut conn, "update tasks set state = 'failed', reason = 'on purpose' where id % 2 = 0").await;
        let begun = async |conn: &mut PgConnection, kind| fixtures::begin_change(conn, &batch, kind, false).await;
        let retry = begun(&mut conn, ChangeKind::Retry).await.expect("begin");
        fixtures::piece(&mut conn, batch.id).await;
        let again = begun(&mut conn, ChangeKind::Retry).await.expect("the same");
        assert_eq!((again.number, again.read, again.changed), (retry.number, 1000, 500));
        let cancel = begun(&mut conn, ChangeKind::Cancel).await.expect("it ends the retry");
        assert!(cancel.number > retry.number && cancel.read == 0, "{cancel:?}");
        fixtures::piece(&mut conn, batch.id).await;
        let refused = begun(&mut conn, ChangeKind::Retry).await.expect_err("it is being cancelled").to_string();
        assert!(refused.starts_with("batch large is being cancelled: "), "{refused}");
        let removal = begun(&mut conn, ChangeKind::Remove).await.expect("what is being cancelled can be removed");
        assert!(removal.number > cancel.number);
        for kind in [ChangeKind::Cancel, ChangeKind::Retry] {
            let refused = begun(&mut conn, kind).await.expect_err("it is being removed").to_string();
            assert!(refused.starts_with("batch large is being removed: "), "{refused}");
        }
        assert_eq!(to_end(&mut conn, batch.id).await, Step::Finished);
        assert_eq!(of_batch(&mut conn, batch.id).await.expect("look"), None);
        assert_eq!(states(&mut conn).await, []);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_retry_takes_what_had_failed_when_it_was_asked_for_and_leaves_what_is_locked(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let (agent, session) = fixtures::crawler(&mut conn, "a").await;
        fixtures::batch(&mut conn, "b", "random").await;
        let batch = batches::by_name(&mut conn, "b").await.expect("look").expect("the batch");
        let tasks = fixtures::queue(&mut conn, batch.id, agent, &["a.cn", "b.cn", "c.cn"]).await;
        fixtures::execute(
            &mut conn,
            "update sites set alias_of = (select id from sites where name = 'a.cn') where name = 'b.cn'",
        )
        .await;
        fixtures::execute_for(
            &mut conn,
            "update tasks set state = 'failed', reason = '' where id <> $1",
            tasks[2].get(),
        )
        .await;
        fixtures::begin_change(&mut conn, &batch, ChangeKind::Retry, false).await.expect("begin");
        // The third site fails after the retry was asked for.
        fixtures::grant(&mut conn, agent, session).await;
        let late = fixtures::report(tasks[2], fixtures::TOKEN, CrawlEnding::Unreachable(None));
        fixtures::record(&mut conn, agent, &late).await;
        let mut hand = fixtures::begin(&pool).await;
        fixtures::execute_for(&mut hand, "select from tasks where id = $1 for update", tasks[0].get()).await;
        fixtures::execute(&mut conn, "set lock_timeout = '2s'").await;
        assert_eq!(to_end(&mut conn, batch.id).await, Step::Waits, "the alias waits for its site, too");
        let rounds = "select count(*) from tasks where round = 2";
        assert_eq!(fixtures::scalar::<i64>(&mut conn, rounds).await, 0);
        hand.rollback().await.expect("roll back");
        assert_eq!(to_end(&mut conn, batch.id).await, Step::Finished);
        let done = of_batch(&mut conn, batch.id).await.expect("look").expect("the change");
        assert_eq!(done.changed, 1, "the two names of one site go again as one");
        assert_eq!(fixtures::scalar::<i64>(&mut conn, rounds).await, 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_is_added_behind_the_position_of_a_cancellation_is_cancelled_too(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let batch = large(&mut conn).await;
        let mut adding = fixtures::begin(&pool).await;
        fixtures::execute(&mut adding, "delete from events").await;
        fixtures::execute(
            &mut adding,
            "insert into tasks (batch_id, site_id, round) select batch_id, site_id, 2 from tasks where id % 500 = 0",
        )
        .await;
        fixtures::begin_change(&mut conn, &batch, ChangeKind::Cancel, false).await.expect("begin");
        fixtures::piece(&mut conn, batch.id).await;
        adding.commit().await.expect("commit");
        assert_eq!(to_end(&mut conn, batch.id).await, Step::Finished);
        assert_eq!(states(&mut conn).await, [("cancelled".to_owned(), 2505)]);
    }
}
