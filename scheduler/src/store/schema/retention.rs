//! Retention: deletes old rows (ended rounds, ended sessions and other kinds) after the time limits
//! that the operator set.
//!
//! Invariants: rows are deleted in many short transactions. Each transaction locks only rows that
//! are no longer in use. It finds these rows through an index, and does not repeatedly read rows
//! that are still in use. The newest round of a site in a batch is kept, however old it is.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AssignmentId, TaskId, words};

use crate::store::agents::issued_tokens;
use crate::store::batches::{list_and_progress, removal};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::Interval;
use crate::store::{Error, Tx};

/// Maximum number of rows deleted by one transaction, not counting their dependent rows. Each row
/// has about ten dependent rows, so a transaction takes a few tens of milliseconds.
const PIECE: i64 = 1_000;
/// Maximum number of events deleted by one statement. The statement takes a few tens of
/// milliseconds.
const EVENTS_AT_ONCE: i64 = 10_000;

words!(
    /// Kinds of rows that are deleted by age. The word is the configuration key that sets how long
    /// the rows are kept.
    RetainedKind {
        /// Rounds before the newest round of the same site and batch, with their dependent rows.
        Rounds = "keep.rounds",
        /// Assignments and leases of a task that are older than the task's newest assignment.
        Moves = "keep.moves",
        Measurements = "keep.measurements",
        /// Ended sessions.
        Sessions = "keep.sessions",
        /// Stored answers to submissions.
        Submissions = "keep.submissions",
        Quarantines = "keep.quarantines",
        Embeddings = "keep.embeddings",
        /// Enrolment tokens that can no longer be used.
        Enrolments = "keep.enrolments",
        /// Throughput per minute.
        Minutes = "keep.minutes",
    }
);

/// Deletes about [`PIECE`] of the rows that have been out of use for at least `keep`, with their
/// dependent rows. Returns whether more such rows may remain.
pub async fn prune(tx: &mut Tx<'_>, subject: RetainedKind, keep: Duration) -> Result<bool, Error> {
    let pruned = match subject {
        RetainedKind::Rounds => rounds(tx, keep).await?,
        RetainedKind::Moves => moves(tx, keep).await?,
        RetainedKind::Measurements => measurements(tx, keep).await?,
        RetainedKind::Sessions => sessions(tx, keep).await?,
        RetainedKind::Submissions => submissions(tx, keep).await?,
        RetainedKind::Quarantines => quarantines(tx, keep).await?,
        RetainedKind::Embeddings => embeddings(tx, keep).await?,
        RetainedKind::Enrolments => issued_tokens::prune(tx, keep).await?,
        RetainedKind::Minutes => list_and_progress::prune(tx, keep, PIECE).await?,
    };
    Ok(i64::try_from(pruned).is_ok_and(|pruned| pruned >= PIECE))
}

async fn rounds(tx: &mut Tx<'_>, keep: Duration) -> Result<u64, Error> {
    let tasks: Vec<_> = sqlx::query_scalar!(
        r#"
        select id from tasks
        where retried_at < now() - $1::interval and state in ('done', 'failed', 'cancelled')
        order by retried_at limit $2
        for update skip locked
        "#,
        Interval(keep),
        PIECE,
    )
    .locked(tx)
    .await?;
    let exclusions = removal::remove_tasks(tx, &tasks).await?;
    unused_exclusions(tx, exclusions).await?;
    Ok(u64::try_from(tasks.len()).unwrap_or(u64::MAX))
}

/// Reads the next [`PIECE`] assignments in the order of their identifiers. A call continues after
/// the last assignment that the previous call read. Each assignment supersedes the earlier
/// assignments of its task, so the earlier ones are deleted. Each assignment is read only once,
/// even if it is still in use.
async fn moves(tx: &mut Tx<'_>, keep: Duration) -> Result<u64, Error> {
    let next = sqlx::query!(
        r#"
        select a.id, a.task_id, a.created_at, a.created_at < now() - $1::interval as "old!"
        from retention_progress p
        join lateral (
            select id, task_id, created_at from assignments where id > p.assignment_id order by id limit $2
        ) a on true
        order by a.id
        "#,
        Interval(keep),
        PIECE,
    )
    .all(tx)
    .await?;
    // Stops at the first row that is too new. Later rows may be old enough, because the identifiers
    // of concurrent transactions' rows may be in a different order from their creation times. A
    // later call continues at the first row that was too new.
    let next: Vec<_> = next.into_iter().take_while(|row| row.old).collect();
    let Some(last) = next.last() else { return Ok(0) };
    let (ids, tasks): (Vec<AssignmentId>, Vec<TaskId>) = next.iter().map(|row| (row.id, row.task_id)).unzip();
    let made: Vec<_> = next.iter().map(|row| row.created_at).collect();
    sqlx::query!(
        r#"
        delete from leases l using unnest($1::bigint[], $2::timestamptz[]) as later (task_id, made_at)
        where l.task_id = later.task_id and l.granted_at < later.made_at and l.state <> 'active'
          and l.token < (select t.token from tasks t where t.id = l.task_id)
          and not exists (select from outcomes o where o.task_id = l.task_id and o.token = l.token)
        "#,
        &tasks as _,
        &made,
    )
    .run(tx)
    .await?;
    let exclusions = sqlx::query_scalar!(
        r#"
        delete from assignments a using unnest($1::bigint[], $2::bigint[]) as later (id, task_id)
        where a.task_id = later.task_id and a.id < later.id
        returning a.exclusions_id
        "#,
        &ids as _,
        &tasks as _,
    )
    .all(tx)
    .await?;
    unused_exclusions(tx, exclusions).await?;
    sqlx::query!("update retention_progress set assignment_id = $1", last.id.get()).run(tx).await?;
    Ok(u64::try_from(next.len()).unwrap_or(u64::MAX))
}

/// Deletes these sets of excluded agents if no assignment refers to them. Keeps each batch's newest
/// set, because the next choice may refer to it.
async fn unused_exclusions(conn: &mut PgConnection, named: Vec<Option<i64>>) -> Result<(), Error> {
    let mut named: Vec<i64> = named.into_iter().flatten().collect();
    named.sort_unstable();
    named.dedup();
    sqlx::query!(
        r#"
        delete from exclusions e
        where e.id = any($1) and not exists (select from assignments a where a.exclusions_id = e.id)
          and exists (select from exclusions newer where newer.batch_id = e.batch_id and newer.id > e.id)
        "#,
        &named,
    )
    .run(conn)
    .await
}

async fn measurements(conn: &mut PgConnection, keep: Duration) -> Result<u64, Error> {
    sqlx::query!(
        r#"
        delete from site_measurements m using (
            select site_id, prober_id from site_measurements
            where measured_at < now() - $1::interval
            order by measured_at limit $2
            for update skip locked
        ) old
        where m.site_id = old.site_id and m.prober_id = old.prober_id
        "#,
        Interval(keep),
        PIECE,
    )
    .affected(conn)
    .await
}

/// Deletes ended sessions, except each agent's newest session, which stores when the agent was last
/// seen.
async fn sessions(conn: &mut PgConnection, keep: Duration) -> Result<u64, Error> {
    sqlx::query!(
        r#"
        delete from sessions s using (
            select id from sessions ended
            where ended.ended_at < now() - $1::interval
              and exists (
                  select from sessions newer
                  where newer.agent_id = ended.agent_id and newer.incarnation > ended.incarnation
              )
              and not exists (select from leases l where l.session_id = ended.id and l.state = 'active')
              and not exists (select from measurement_orders o where o.session_id = ended.id)
            order by ended_at limit $2
            for update skip locked
        ) old
        where s.id = old.id
        "#,
        Interval(keep),
        PIECE,
    )
    .affected(conn)
    .await
}

async fn submissions(conn: &mut PgConnection, keep: Duration) -> Result<u64, Error> {
    sqlx::query!(
        r#"
        delete from submissions where idempotency_key in (
            select idempotency_key from submissions
            where created_at < now() - $1::interval
            order by created_at limit $2
        )
        "#,
        Interval(keep),
        PIECE,
    )
    .affected(conn)
    .await
}

async fn quarantines(conn: &mut PgConnection, keep: Duration) -> Result<u64, Error> {
    let released = sqlx::query!(
        r#"
        delete from quarantines where id in (
            select id from quarantines where released_at < now() - $1::interval order by released_at limit $2
        )
        "#,
        Interval(keep),
        PIECE,
    )
    .affected(conn)
    .await?;
    let ended = sqlx::query!(
        r#"
        delete from trust_alarms where id in (
            select id from trust_alarms where ended_at < now() - $1::interval order by ended_at limit $2
        )
        "#,
        Interval(keep),
        PIECE,
    )
    .affected(conn)
    .await?;
    Ok(released.max(ended))
}

async fn embeddings(conn: &mut PgConnection, keep: Duration) -> Result<u64, Error> {
    sqlx::query!(
        r#"
        delete from embedding_history where epoch in (
            -- Epochs rise, so the rows with the lowest epochs are the oldest rows.
            select epoch from (select epoch, fitted_at from embedding_history order by epoch limit $2) oldest
            where fitted_at < now() - $1::interval
        )
        "#,
        Interval(keep),
        PIECE,
    )
    .affected(conn)
    .await
}

/// Deletes at most [`EVENTS_AT_ONCE`] events older than `keep`, oldest first. Returns the number of
/// deleted events. Also deletes events with transaction numbers that this server has not reached
/// yet: such events were copied from another server, and no reader could read them in order.
pub async fn prune_events(conn: &mut PgConnection, keep: Duration) -> Result<u64, Error> {
    sqlx::query!(
        r#"
        with oldest as (select xact, id, at from events order by xact, id limit $2)
        delete from events e using oldest o
        where e.xact = o.xact and e.id = o.id
          and (o.at < now() - $1::interval or o.xact >= (
              select (pg_snapshot_xmax(pg_current_snapshot())::text::bigint
                      + coalesce(pg_sequence_last_value('event_offset'), 0))::text::xid8
          ))
        "#,
        Interval(keep),
        EVENTS_AT_ONCE,
    )
    .affected(conn)
    .await
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::model::{AgentId, ChoiceReasons, Parting, SessionId, Strategy, TaskId};
    use crate::store::assignments::{self, Assignment, Pool};
    use crate::store::fixtures;
    use crate::store::tasks::measuring_and_rounds;
    use crate::strategy::Choice;

    const HOUR: Duration = Duration::from_secs(3600);

    async fn count(pool: &PgPool, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(pool).await.expect("count")
    }

    async fn execute(pool: &PgPool, sql: &'static str) {
        sqlx::query(sql).execute(pool).await.expect("execute");
    }

    /// Calls [`prune`] until no row is left to delete.
    async fn pruned(pool: &PgPool, subject: RetainedKind) {
        loop {
            let mut tx = fixtures::begin(pool).await;
            let more = prune(&mut tx, subject, HOUR).await.expect("prune");
            tx.commit().await.expect("commit");
            if !more {
                return;
            }
        }
    }

    async fn crawler(pool: &PgPool, name: &str) -> (AgentId, SessionId) {
        let mut conn = pool.acquire().await.expect("connect");
        let agent = fixtures::agent(&mut conn, name).await;
        (agent, fixtures::session(&mut conn, agent).await)
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn old_events_go_and_new_ones_stay(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let batch = fixtures::batch(&mut conn, "autumn", "random").await;
        for site in ["a.cn", "b.cn"] {
            let site = fixtures::site(&mut conn, site).await;
            fixtures::task(&mut conn, batch, site, "submitted").await;
        }
        execute(&pool, "update events set at = now() - interval '2 days' where id = (select min(id) from events)")
            .await;
        let day = 24 * HOUR;
        assert_eq!(prune_events(&mut conn, day).await.expect("prune"), 1);
        assert_eq!(prune_events(&mut conn, day).await.expect("prune"), 0);
        assert_eq!(count(&pool, "select count(*) from events").await, 1);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_round_goes_with_all_that_hangs_on_it_and_the_newest_stays(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let first = fixtures::leased(&mut conn, "a").await.task;
        for ended in [
            "insert into outcomes (task_id, token, agent_id, kind, pages, bytes, errors, started_at, duration_ms)
             select task_id, token, agent_id, 'complete', 1, 1, 0, now(), 1000 from leases",
            "update leases set state = 'completed', ended_at = now()",
            "update tasks set state = 'done'",
            "insert into exclusions (batch_id, agents, causes) select id, '{7}', '{quota}' from batches cross join generate_series(1, 2)",
            "update assignments set exclusions_id = (select min(id) from exclusions)",
        ] {
            execute(&pool, ended).await;
        }
        let next = async |tx: &mut Tx<'_>| {
            let first = fixtures::lock(tx, &[first]).await;
            measuring_and_rounds::next(tx, &first).await
        };
        assert_eq!(fixtures::tx(&mut conn, next).await.expect("a round"), 1);
        pruned(&pool, RetainedKind::Rounds).await;
        assert_eq!(count(&pool, "select count(*) from tasks").await, 2, "not old enough");
        execute(&pool, "update tasks set retried_at = now() - interval '2 hours' where retried_at is not null").await;
        execute(&pool, "update tasks set state_since = now() - interval '2 years'").await;
        pruned(&pool, RetainedKind::Rounds).await;
        assert_eq!(
            count(&pool, "select min(round)::bigint from tasks having count(*) = 1").await,
            2,
            "the newest stays"
        );
        let left = "select (select count(*) from leases) + (select count(*) from outcomes) + (select count(*) from assignments)";
        assert_eq!(count(&pool, left).await, 0);
        assert_eq!(count(&pool, "select count(*) from exclusions").await, 1, "the next choice may share the newest");
    }

    /// Assigns a task to an agent. There are no other candidates.
    async fn choose(pool: &PgPool, task: TaskId, agent: AgentId) {
        let choice = Choice { agent, candidates: Vec::new(), strategy: Strategy::Random, fallback: None };
        let mut tx = fixtures::begin(pool).await;
        let locked = fixtures::lock(&mut tx, &[task]).await[0];
        let made = Assignment::new(1, choice, ChoiceReasons::default());
        assignments::insert(&mut tx, &[(locked, made)]).await.expect("assign");
        tx.commit().await.expect("commit");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_choice_and_its_lease_go_an_hour_after_the_next_choice_was_made(pool: PgPool) {
        let (a, of_a) = crawler(&pool, "a").await;
        let (b, of_b) = crawler(&pool, "b").await;
        let mut conn = pool.acquire().await.expect("connect");
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::task(&mut conn, batch, site, "located").await;
        choose(&pool, task, a).await;
        fixtures::grant(&mut conn, a, of_a).await;
        execute(&pool, "update assignments set created_at = now() - interval '3 hours'").await;
        execute(&pool, "update leases set granted_at = now() - interval '3 hours'").await;
        pruned(&pool, RetainedKind::Moves).await;
        assert_eq!(count(&pool, "select count(*) from assignments").await, 1, "it is in use, however old");
        assert!(fixtures::hand_back(&mut conn, a, task).await);
        choose(&pool, task, b).await;
        pruned(&pool, RetainedKind::Moves).await;
        assert_eq!(count(&pool, "select count(*) from assignments").await, 2, "the move is of this hour");
        execute(&pool, "update assignments set created_at = now() - interval '2 hours'").await;
        pruned(&pool, RetainedKind::Moves).await;
        assert_eq!(count(&pool, "select count(*) from leases").await, 1, "the newest lease may still be answered");
        fixtures::grant(&mut conn, b, of_b).await;
        assert_eq!(count(&pool, "select agent_id from assignments").await, b.get());
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_choice_whose_number_was_given_before_an_older_ones_is_not_passed_over(pool: PgPool) {
        let (a, b) = (crawler(&pool, "a").await.0, crawler(&pool, "b").await.0);
        let mut conn = pool.acquire().await.expect("connect");
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        for name in ["a.cn", "b.cn"] {
            let site = fixtures::site(&mut conn, name).await;
            let task = fixtures::task(&mut conn, batch, site, "located").await;
            choose(&pool, task, a).await;
            choose(&pool, task, b).await;
        }
        execute(&pool, "update assignments set created_at = now() - interval '2 hours'").await;
        execute(&pool, "update assignments set created_at = now() where id = (select min(id) + 1 from assignments)")
            .await;
        pruned(&pool, RetainedKind::Moves).await;
        assert_eq!(count(&pool, "select count(*) from assignments").await, 4, "the second is not old enough");
        execute(&pool, "update assignments set created_at = now() - interval '2 hours'").await;
        pruned(&pool, RetainedKind::Moves).await;
        assert_eq!(count(&pool, "select count(*) from assignments").await, 2);
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_crawl_whose_session_is_deleted_still_counts_as_lost(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let agent = fixtures::leased(&mut conn, "a").await.agent;
        fixtures::session(&mut conn, agent).await;
        for lost in [
            "update leases set state = 'expired', ended_at = now()",
            "update tasks set state = 'located'",
            "update sessions set ended_at = now() - interval '2 hours' where state <> 'active'",
        ] {
            execute(&pool, lost).await;
        }
        pruned(&pool, RetainedKind::Sessions).await;
        assert_eq!(count(&pool, "select count(*) from sessions").await, 1);
        let mut tx = fixtures::begin(&pool).await;
        let (waiting, _) = assignments::waiting(&mut tx, Pool::EachByItself, 10).await.expect("look");
        assert_eq!(waiting[0].parted.as_ref().map(|parted| parted.how), Some(Parting::Lost));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn what_is_over_goes_by_its_age_and_what_is_in_use_stays(pool: PgPool) {
        let (agent, _) = crawler(&pool, "a").await;
        let mut conn = pool.acquire().await.expect("connect");
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let old = fixtures::site(&mut conn, "old.cn").await;
        let fresh = fixtures::site(&mut conn, "fresh.cn").await;
        // Opens a second session of the agent, which ends the first one.
        fixtures::session(&mut conn, agent).await;
        for (site, age) in [(old, "2 hours"), (fresh, "1 minute")] {
            fixtures::measured(&mut conn, site, agent, 1000, age).await;
            sqlx::query(
                "insert into submissions (idempotency_key, request_sha256, batch_id, added, already_present, duplicates, batch_total, created_at)
                 values ($1, '', $2, 1, 0, 0, 1, now() - $1::text::interval)",
            )
            .bind(age)
            .bind(batch.get())
            .execute(&mut *conn)
            .await
            .expect("submit");
        }
        execute(&pool, "update sessions set ended_at = now() - interval '2 hours' where state <> 'active'").await;
        execute(
            &pool,
            "insert into trust_alarms (reason, since, ended_at) values ('x', now(), now() - interval '2 hours'), ('y', now(), null)",
        )
        .await;
        for &subject in RetainedKind::ALL {
            pruned(&pool, subject).await;
        }
        assert_eq!(count(&pool, "select site_id from site_measurements").await, fresh.get());
        assert_eq!(count(&pool, "select count(*) from submissions").await, 1);
        assert_eq!(count(&pool, "select count(*) from sessions where state = 'active'").await, 1);
        assert_eq!(count(&pool, "select count(*) from sessions").await, 1);
        assert_eq!(count(&pool, "select count(*) from trust_alarms where ended_at is null").await, 1);
        assert_eq!(count(&pool, "select count(*) from trust_alarms").await, 1);
    }
}
