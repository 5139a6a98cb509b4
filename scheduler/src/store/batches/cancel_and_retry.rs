//! Cancels and retries tasks of a submitted batch: those of the sites that an operator names, and
//! those that a piece of a change of the whole batch read.
//!
//! Invariants: a change of named sites is made completely or not at all, and repeating a change
//! changes nothing. The transaction that cancels a task also ends the task's lease, so later
//! reports on this lease are refused. Ended tasks do not change: a retry makes a new round.

use std::collections::{HashMap, HashSet};

use sqlx::PgConnection;

use crate::model::site_name::SiteName;
use crate::model::{AgentId, BatchId, LeaseToken, SiteId, TaskId};

use super::changes::{ChangeKind, PieceResult, ReadTask};
use crate::store::leases;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::tasks::{holds, measuring_and_rounds};
use crate::store::types::Unsigned;
use crate::store::{Error, Locked, Tx, sites};

const CANCELLED: &str = "cancelled by the operator";
/// Maximum number of sites that an error message names.
const NAMED_AT_MOST: usize = 5;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CancelResult {
    pub tasks: u64,
    pub leases: u64,
    /// Number of tasks that had already ended; they do not change.
    pub ended: u64,
    /// Number of the tasks in `ended` whose planned recrawl was cancelled.
    pub recrawls: u64,
    /// The agents whose leases were revoked. They must be notified.
    pub agents: Vec<AgentId>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RetryResult {
    /// Number of tasks that got a new round.
    pub tasks: u64,
    /// Number of sites whose newest round has not ended; they get no new round.
    pub open: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    #[error("batch {batch} does not contain {}", listed(.sites))]
    NotInBatch { batch: String, sites: Vec<String> },
    #[error("batch {batch} has completed {}: submit them to another batch to crawl them again", listed(.sites))]
    Done { batch: String, sites: Vec<String> },
    #[error("a site of batch {0} is locked by another transaction of the database: nothing was changed; try again")]
    Locked(String),
    #[error("change a batch")]
    Store(#[source] Error),
}

impl ChangeError {
    fn of(batch: &str, error: Error) -> Self {
        if error.is_locked() { Self::Locked(batch.to_owned()) } else { Self::Store(error) }
    }
}

fn listed(sites: &[String]) -> String {
    let named = sites.iter().take(NAMED_AT_MOST).map(String::as_str).collect::<Vec<_>>().join(", ");
    match sites.len().saturating_sub(NAMED_AT_MOST) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Limits how long the transaction waits for a lock. A task may be locked by hand for minutes, and
/// meanwhile the call would keep the tasks that it has already locked.
async fn limit_waits(tx: &mut Tx<'_>) -> Result<(), Error> {
    sqlx::query!("select set_config('lock_timeout', '2s', true) as timeout").one(tx).await?;
    Ok(())
}

/// Cancels the open tasks of the named sites, and the planned recrawls of ended tasks. Revokes the
/// tasks' active leases; the agents' sessions later send the revocations.
pub async fn cancel(
    tx: &mut Tx<'_>,
    batch: BatchId,
    name: &str,
    names: &[SiteName],
) -> Result<CancelResult, ChangeError> {
    let sites: Vec<SiteId> = of_batch(tx, batch, name, names).await?.into_iter().flatten().collect();
    cancel_sites(tx, batch, &sites).await.map_err(|error| ChangeError::of(name, error))
}

async fn cancel_sites(tx: &mut Tx<'_>, batch: BatchId, sites: &[SiteId]) -> Result<CancelResult, Error> {
    limit_waits(tx).await?;
    // One statement locks ended and open tasks in the order of their identifiers, like a retry.
    let newest = sqlx::query_scalar!(
        r#"
        select id from tasks
        where batch_id = $1 and retried_at is null
          and (site_id = any($2) or site_id in (select id from sites where alias_of = any($2)))
        order by id
        for update
        "#,
        batch.get(),
        sites as _,
    );
    newest.all(tx).await?;
    // Cancelling recrawls waits for any transaction that is making a round. The query for open
    // tasks comes afterwards, so that it also finds the tasks of this round.
    let mut recrawls = measuring_and_rounds::end_recrawls(tx, batch, sites).await?;
    let open = sqlx::query_scalar!(
        r#"
        select id from tasks
        where batch_id = $1 and site_id = any($2) and state::text not in ('done', 'failed', 'cancelled')
        order by id
        for update
        "#,
        batch.get(),
        sites as _,
    );
    let open: Vec<_> = open.locked(tx).await?;
    let done = cancel_locked(tx, &open).await?;
    // An outcome may have ended a task, and planned its recrawl, while this transaction waited for
    // the task's lock.
    recrawls += measuring_and_rounds::end_recrawls(tx, batch, sites).await?;
    let total = sqlx::query_scalar!(
        r#"
        select count(*) as "count!: Unsigned<u64>" from tasks
        where batch_id = $1 and retried_at is null and site_id = any($2)
        "#,
        batch.get(),
        sites as _,
    );
    Ok(CancelResult {
        tasks: done.changed,
        leases: done.leases,
        ended: total.one(tx).await?.0.saturating_sub(done.changed),
        recrawls: recrawls + done.recrawls,
        agents: done.agents,
    })
}

/// Cancels these tasks unless they have ended, and drops the planned recrawls of those that have
/// ended.
async fn cancel_locked(tx: &mut Tx<'_>, tasks: &[Locked<TaskId>]) -> Result<PieceResult, Error> {
    if tasks.is_empty() {
        return Ok(PieceResult::default());
    }
    holds::end(tx, tasks).await?;
    // The agent is set here because a trigger that did it would run for each task.
    let cancelled = sqlx::query!(
        r#"
        update tasks
        set state = 'cancelled', agent_id = null, reason = $2, reason_kind = 'cancelled', state_since = now()
        where id = any($1) and state::text not in ('done', 'failed', 'cancelled')
        returning id, token
        "#,
        tasks as _,
        CANCELLED,
    )
    .all(tx)
    .await?;
    // An outcome may have ended a task, and planned its recrawl, just before the task was locked.
    let recrawls =
        sqlx::query!("update tasks set recrawl_at = null where id = any($1) and recrawl_at is not null", tasks as _,);
    let recrawls = recrawls.affected(tx).await?;
    let changed = u64::try_from(cancelled.len()).unwrap_or(u64::MAX);
    let never = LeaseToken::new(0);
    let leased = cancelled.into_iter().filter(|row| row.token > never);
    let leased: Vec<_> = leased.map(|row| (Locked::by(tx, row.id), row.token)).collect();
    let agents = leases::revoke(tx, &leased).await?;
    Ok(PieceResult {
        changed,
        recrawls,
        leases: u64::try_from(agents.len()).unwrap_or(u64::MAX),
        agents,
        ..PieceResult::default()
    })
}

/// Maximum number of tasks with an agent that a piece cancels.
const BEGUN: i64 = 2_000;

/// Cancels tasks of the batch that are being crawled or, unless they are to be removed, that wait
/// at an agent. These come first, so that crawls stop at once and agents' queues become short.
pub(super) async fn cancel_begun(tx: &mut Tx<'_>, batch: BatchId, kind: ChangeKind) -> Result<PieceResult, Error> {
    let leased = sqlx::query_scalar!(
        "select id from tasks where batch_id = $1 and state = 'leased' limit $2 for update skip locked",
        batch.get(),
        BEGUN,
    );
    let mut begun: Vec<_> = leased.locked(tx).await?;
    if begun.is_empty() && kind == ChangeKind::Cancel {
        let assigned = sqlx::query_scalar!(
            "select id from tasks where batch_id = $1 and state = 'assigned' limit $2 for update skip locked",
            batch.get(),
            BEGUN,
        );
        begun = assigned.locked(tx).await?;
    }
    cancel_locked(tx, &begun).await
}

/// Cancels those of the tasks that no other transaction has locked.
pub(super) async fn cancel_unlocked(tx: &mut Tx<'_>, tasks: &[ReadTask]) -> Result<PieceResult, Error> {
    let meant: Vec<TaskId> = tasks.iter().filter(|task| task.meant).map(|task| task.id).collect();
    let locked = lock_free(tx, &meant).await?;
    let done = cancel_locked(tx, &locked.iter().copied().collect::<Vec<_>>()).await?;
    let left = tasks.iter().filter(|task| task.meant && !locked.contains(&task.id)).map(|task| task.site);
    Ok(PieceResult { left: left.collect(), ..done })
}

/// Locks those of the tasks that no other transaction has locked.
async fn lock_free(tx: &mut Tx<'_>, tasks: &[TaskId]) -> Result<HashSet<Locked<TaskId>>, Error> {
    if tasks.is_empty() {
        return Ok(HashSet::new());
    }
    let locked =
        sqlx::query_scalar!("select id from tasks where id = any($1) order by id for update skip locked", tasks as _);
    locked.locked(tx).await
}

/// Makes a new round of the failed and cancelled tasks of the named sites. The sites are measured
/// again, and agents are chosen again.
pub async fn retry(
    tx: &mut Tx<'_>,
    batch: BatchId,
    name: &str,
    names: &[SiteName],
) -> Result<RetryResult, ChangeError> {
    let store = |error| ChangeError::of(name, error);
    limit_waits(tx).await.map_err(store)?;
    let (again, open) = named(tx, batch, name, names).await?;
    Ok(RetryResult { tasks: measuring_and_rounds::next(tx, &again).await.map_err(store)?, open })
}

/// Makes a new round of those of the tasks that have failed, unless another transaction has locked
/// a task of the same site. Omits the task of an alias (a name that leads to another site's origin)
/// if the other site has an open or done task.
pub(super) async fn retry_unlocked(tx: &mut Tx<'_>, batch: BatchId, tasks: &[ReadTask]) -> Result<PieceResult, Error> {
    let meant: Vec<&ReadTask> = tasks.iter().filter(|task| task.meant).collect();
    if meant.is_empty() {
        return Ok(PieceResult::default());
    }
    // The new round of an alias also ends the former round of the site to which the alias points.
    let sites: Vec<SiteId> = meant.iter().flat_map(|task| [Some(task.site), task.alias_of]).flatten().collect();
    let newest = sqlx::query!(
        "select id, site_id from tasks where batch_id = $1 and site_id = any($2) and retried_at is null",
        batch.get(),
        &sites as _,
    );
    let newest = newest.all(tx).await?;
    let locked = lock_free(tx, &newest.iter().map(|task| task.id).collect::<Vec<_>>()).await?;
    let busy: HashSet<SiteId> =
        newest.iter().filter(|task| !locked.contains(&task.id)).map(|task| task.site_id).collect();
    let is_busy =
        |task: &&ReadTask| busy.contains(&task.site) || task.alias_of.is_some_and(|site| busy.contains(&site));
    let (left, free): (Vec<&ReadTask>, Vec<&ReadTask>) = meant.into_iter().partition(is_busy);
    let free: Vec<_> = free.iter().filter_map(|task| locked.get(&task.id).copied()).collect();
    let again = sqlx::query_scalar!(
        r#"
        select t.id
        from tasks t join sites s on s.id = t.site_id
        where t.id = any($2) and t.state::text = 'failed' and t.retried_at is null
          -- The `or` prevents a join. If the planner underestimated the batch, a join would
          -- compare each task with every other task.
          and (s.alias_of is null or not exists (
              select from tasks k
              where k.batch_id = $1 and k.site_id = s.alias_of and k.retried_at is null
                and k.state not in ('failed', 'cancelled')
          ))
        "#,
        batch.get(),
        &free as _,
    );
    let again: Vec<_> = again.locked(tx).await?;
    let changed = measuring_and_rounds::next(tx, &again).await?;
    Ok(PieceResult { changed, left: left.iter().map(|task| task.site).collect(), ..PieceResult::default() })
}

/// Locks the tasks of the named sites that may be retried. Also returns the number of sites with
/// open tasks.
async fn named(
    tx: &mut Tx<'_>,
    batch: BatchId,
    name: &str,
    names: &[SiteName],
) -> Result<(Vec<Locked<TaskId>>, u64), ChangeError> {
    let sites = of_batch(tx, batch, name, names).await?;
    let all: Vec<SiteId> = sites.iter().flatten().copied().collect();
    let tasks = sqlx::query!(
        r#"
        select id, site_id, state = 'done' as "done!", state in ('failed', 'cancelled') as "again!"
        from tasks
        where batch_id = $1 and site_id = any($2) and retried_at is null
        order by id
        for update
        "#,
        batch.get(),
        &all as _,
    )
    .all(tx)
    .await
    .map_err(|error| ChangeError::of(name, error))?;
    let mut of_site: HashMap<SiteId, Vec<_>> = HashMap::new();
    for task in tasks {
        of_site.entry(task.site_id).or_default().push(task);
    }
    let (mut again, mut open, mut done) = (Vec::new(), 0, Vec::new());
    for (name, ids) in names.iter().zip(&sites) {
        // If the name is an alias, the tasks of the site to which the alias points are included.
        let its = || ids.iter().filter_map(|id| of_site.get(id)).flatten();
        if its().any(|task| task.done) {
            done.push(name.to_string());
        } else if its().all(|task| task.again) {
            again.extend(its().map(|task| task.id).max().map(|task| Locked::by(tx, task)));
        } else {
            open += 1;
        }
    }
    if done.is_empty() { Ok((again, open)) } else { Err(ChangeError::Done { batch: name.to_owned(), sites: done }) }
}

/// For each name, the identifier of its site and, if the site is an alias, also of the site to
/// which the alias points.
async fn of_batch(
    conn: &mut PgConnection,
    batch: BatchId,
    batch_name: &str,
    names: &[SiteName],
) -> Result<Vec<Vec<SiteId>>, ChangeError> {
    let found = sites::find_all(conn, names).await.map_err(ChangeError::Store)?;
    let ids: Vec<Vec<SiteId>> = found.into_iter().map(|site| site.map(|site| site.ids()).unwrap_or_default()).collect();
    let there = sqlx::query_scalar!(
        "select distinct site_id from tasks where batch_id = $1 and site_id = any($2)",
        batch.get(),
        &ids.concat() as _,
    )
    .all(conn)
    .await
    .map_err(ChangeError::Store)?;
    let there: HashSet<SiteId> = there.into_iter().collect();
    let missing = names.iter().zip(&ids).filter(|(_, ids)| !ids.iter().any(|id| there.contains(id)));
    let missing: Vec<String> = missing.map(|(name, _)| name.to_string()).collect();
    if missing.is_empty() {
        Ok(ids)
    } else {
        Err(ChangeError::NotInBatch { batch: batch_name.to_owned(), sites: missing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{CrawlEnding, SessionId};
    use crate::store::agents::refusals::Refusal;
    use crate::store::agents::sessions;
    use crate::store::batches;
    use crate::store::fixtures::{self, Conn};
    use crate::store::leases::outcomes::{OutcomeAnswer, OutcomeReport};

    fn names(names: &[&str]) -> Vec<SiteName> {
        names.iter().map(|name| name.parse().expect("a name")).collect()
    }

    /// A batch of three sites, all assigned to one agent with two slots.
    async fn batch(conn: &mut PgConnection) -> (BatchId, AgentId, SessionId, Vec<TaskId>) {
        let (agent, session) = fixtures::crawler(conn, "a").await;
        let batch = fixtures::batch(conn, "autumn", "random").await;
        let tasks = fixtures::queue(conn, batch, agent, &["a.cn", "b.cn", "c.cn"]).await;
        (batch, agent, session, tasks)
    }

    fn report(task: TaskId, ending: CrawlEnding) -> OutcomeReport {
        fixtures::report(task, fixtures::TOKEN, ending)
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_cancelled_lease_is_revoked_once_and_its_outcome_is_stale(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (batch, agent, session, tasks) = batch(&mut conn).await;
        assert_eq!(fixtures::grant(&mut conn, agent, session).await.len(), 2);
        let cancelled = cancel(&mut conn, batch, "autumn", &names(&["a.cn", "c.cn"])).await.expect("cancel");
        assert_eq!(cancelled, CancelResult { tasks: 2, leases: 1, ended: 0, recrawls: 0, agents: vec![agent] });
        assert_eq!(fixtures::state(&mut conn, tasks[1]).await, "leased", "it was not named");

        let waits = sessions::waiting(&mut conn, agent, session).await.expect("look").expect("an active session");
        assert!(waits.revocations);
        let revoked = leases::take_revoked(&mut conn, session).await.expect("take");
        assert_eq!(revoked, [(tasks[0], fixtures::TOKEN)]);
        assert!(leases::take_revoked(&mut conn, session).await.expect("take").is_empty(), "told once");
        let late = fixtures::record(&mut conn, agent, &report(tasks[0], CrawlEnding::Complete)).await;
        assert_eq!(late, OutcomeAnswer::Refused(Refusal::EndedTask));
        assert!(!fixtures::hand_back(&mut conn, agent, tasks[0]).await);
        assert_eq!(fixtures::state(&mut conn, tasks[0]).await, "cancelled");

        let again = cancel(&mut conn, batch, "autumn", &names(&["a.cn", "c.cn"])).await.expect("cancel");
        assert_eq!(again, CancelResult { ended: 2, ..CancelResult::default() });
        let all = fixtures::change(&mut conn, batch, ChangeKind::Cancel).await;
        assert_eq!((all.changed, all.leases, all.sites), (1, 1, 3));
        assert_eq!(batches::progress(&mut conn, batch).await.expect("progress").open(), 0);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_failed_goes_again_in_a_new_round_and_counts_once(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let (batch, agent, session, tasks) = batch(&mut conn).await;
        fixtures::grant(&mut conn, agent, session).await;
        fixtures::record(&mut conn, agent, &report(tasks[0], CrawlEnding::Unreachable(None))).await;
        fixtures::record(&mut conn, agent, &report(tasks[1], CrawlEnding::Complete)).await;
        cancel(&mut conn, batch, "autumn", &names(&["c.cn"])).await.expect("cancel");

        let refused = retry(&mut conn, batch, "autumn", &names(&["a.cn", "b.cn"])).await.expect_err("b.cn is done");
        assert!(refused.to_string().starts_with("batch autumn has completed b.cn:"), "{refused}");
        let refused = retry(&mut conn, batch, "autumn", &names(&["x.cn"])).await.expect_err("unknown");
        assert_eq!(refused.to_string(), "batch autumn does not contain x.cn");

        let failed = fixtures::change(&mut conn, batch, ChangeKind::Retry).await;
        assert_eq!(failed.changed, 1, "a cancelled one goes again by name alone");
        let named = retry(&mut conn, batch, "autumn", &names(&["a.cn", "c.cn"])).await.expect("retry");
        assert_eq!(named, RetryResult { tasks: 1, open: 1 }, "a.cn is under way");
        assert_eq!(fixtures::change(&mut conn, batch, ChangeKind::Retry).await.changed, 0);

        let rounds: Vec<(String, i32, String)> = fixtures::rows(
            &mut conn,
            "select s.name, t.round, t.state::text from tasks t join sites s on s.id = t.site_id order by 1, 2",
        )
        .await;
        let expected = [
            ("a.cn", 1, "failed"),
            ("a.cn", 2, "located"),
            ("b.cn", 1, "done"),
            ("c.cn", 1, "cancelled"),
            ("c.cn", 2, "located"),
        ];
        assert_eq!(rounds, expected.map(|(name, round, state)| (name.to_owned(), round, state.to_owned())));
        let progress = batches::progress(&mut conn, batch).await.expect("progress");
        assert_eq!((progress.located, progress.complete, progress.failed, progress.cancelled), (2, 1, 0, 0));
        assert_eq!(batches::task_count(&mut conn, batch).await.expect("count"), 3);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn two_names_of_one_site_go_again_as_one(mut conn: Conn) {
        let (batch, _, _, _) = batch(&mut conn).await;
        fixtures::execute(&mut conn, "update tasks set state = 'failed', reason = 'unreachable: on purpose'").await;
        fixtures::execute(
            &mut conn,
            "update sites set alias_of = (select id from sites where name = 'a.cn') where name in ('b.cn', 'c.cn')",
        )
        .await;
        let mut tx = Tx::on(&mut conn).await.expect("begin");
        assert_eq!(retry(&mut tx, batch, "autumn", &names(&["b.cn", "c.cn"])).await.expect("retry").tasks, 1);
        tx.rollback().await.expect("rollback");
        assert_eq!(fixtures::change(&mut conn, batch, ChangeKind::Retry).await.changed, 1);
        let open: Vec<(String, i32)> = fixtures::rows(
            &mut conn,
            "select s.name, t.round from tasks t join sites s on s.id = t.site_id where t.state = 'located'",
        )
        .await;
        assert_eq!(open, [("a.cn".to_owned(), 2)]);
    }
}
