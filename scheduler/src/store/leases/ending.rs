//! Ends leases, releases those that agents return or whose session has ended, and reads the
//! revocations that a session must still send.
//!
//! The statements of [`end`], [`revoke`] and [`complete`] are the only ones that end leases. Invariant: a task
//! is locked before its lease. Several tasks are locked in the order of their identifiers. Without
//! this order, two transactions that end leases could deadlock.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, LeaseToken, SessionId, TaskId, words};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::tasks::holds::{self, Cause};
use crate::store::types::{Interval, whole};
use crate::store::{Error, Locked, Tx};

words!(
    /// Whether a lease is active, and if not, how it ended.
    LeaseState {
        /// The lease's agent may crawl the site.
        Active = "active",
        /// The outcome of the crawl was accepted.
        Completed = "completed",
        /// The agent released the lease.
        Released = "released",
        /// The lease's session ended.
        Expired = "expired",
        /// The lease's task was cancelled.
        Revoked = "revoked",
        /// The crawl went on beyond its time limit, so the scheduler took the lease back.
        Overdue = "overdue",
    }
);

/// How a lease ends without an outcome.
#[derive(Debug, Clone, Copy)]
pub(in crate::store) enum Ending<'a> {
    /// The agent releases the lease; the task stays assigned to the agent.
    HandedBack,
    Crashed {
        with: &'a str,
        /// Number of crashes at which the task fails.
        most: u32,
    },
    /// The lease's session ended. This counts as a crash if the session expired, or if another
    /// process superseded it.
    Lost { most: u32 },
    /// The agent releases the lease, and another agent is to be chosen for the task.
    Anew,
    /// The crawl went on beyond its time limit. An agent is to be chosen again for the task. This
    /// does not count as a crash, because one agent that hangs would make poison of its sites.
    Overdue,
}

impl Ending<'_> {
    const fn state(self) -> LeaseState {
        match self {
            Self::HandedBack | Self::Crashed { .. } | Self::Anew => LeaseState::Released,
            Self::Lost { .. } => LeaseState::Expired,
            Self::Overdue => LeaseState::Overdue,
        }
    }
}

/// Ends leases that are active and, if `of` is set, belong to that agent; ignores other leases.
/// Returns the tasks of the ended leases, with their agents.
pub(in crate::store) async fn end(
    tx: &mut Tx<'_>,
    leases: &[(TaskId, LeaseToken)],
    of: Option<AgentId>,
    ending: Ending<'_>,
) -> Result<Vec<(Locked<TaskId>, AgentId)>, Error> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let (tasks, tokens): (Vec<i64>, Vec<i64>) = leases.iter().map(|(task, token)| (task.get(), token.get())).unzip();
    let (crash, most) = match ending {
        Ending::Crashed { with, most } => (Some(with), Some(most)),
        Ending::Lost { most } => (None, Some(most)),
        Ending::HandedBack | Ending::Anew | Ending::Overdue => (None, None),
    };
    let ended = sqlx::query!(
        r#"
        with held as (
            select t.id, t.token
            from unnest($1::bigint[], $2::bigint[]) as ending (task_id, token)
            join tasks t on t.id = ending.task_id and t.token = ending.token
            where t.state = 'leased'
            order by t.id
            for update of t
        ), ended as (
            update leases l set state = $3, ended_at = now(), crash = $4
            from held
            where l.task_id = held.id and l.token = held.token and l.state = 'active'
              and ($5::bigint is null or l.agent_id = $5)
              -- Meanwhile the agent may have reconnected and bound the lease to its new session.
              and ($3::lease_state <> 'expired' or exists (select from sessions s where s.id = l.session_id and s.state <> 'active'))
            returning l.task_id, l.agent_id, l.session_id
        ), counted as (
            select e.task_id, e.agent_id,
                   -- An agent that left, was removed or only reconnected did not crash.
                   case when $4 is not null or $3 = 'expired' and s.end_cause in ('expired', 'superseded') then 1 else 0 end as crashed
            from ended e join sessions s on s.id = e.session_id
        ), judged as (
            select c.*, t.crashes + c.crashed as crashes, c.crashed > 0 and t.crashes + c.crashed >= $6 as given_up
            from counted c join tasks t on t.id = c.task_id
        )
        update tasks t
        set state = case when j.given_up then 'failed' when $7 then 'located' else 'assigned' end::task_state,
            crashes = j.crashes,
            reason = case when j.given_up then
                         case when $4 is null then format('poison: agent %s was lost, %s crashes in all', a.name, $6)
                              else format('poison: its crawl crashed %s times, at last with: %s', $6, $4) end
                     end,
            reason_kind = case when j.given_up then 'poison'::reason_kind end, state_since = now()
        from judged j join agents a on a.id = j.agent_id
        where t.id = j.task_id
        returning t.id, j.agent_id, j.given_up as "given_up!"
        "#,
        &tasks,
        &tokens,
        ending.state(),
        crash,
        of.map(AgentId::get),
        most.map(whole::<i32, _>),
        matches!(ending, Ending::Anew | Ending::Overdue),
    )
    .all(tx)
    .await?;
    let given_up: Vec<_> = Locked::all(tx, ended.iter().filter(|row| row.given_up).map(|row| row.id));
    if !given_up.is_empty() {
        holds::end(tx, &given_up).await?;
    }
    Ok(ended.into_iter().map(|row| (Locked::by(tx, row.id), row.agent_id)).collect())
}

/// Ends those of the leases of cancelled tasks that are active. Returns the leases' agents.
pub(in crate::store) async fn revoke(
    tx: &mut Tx<'_>,
    leases: &[(Locked<TaskId>, LeaseToken)],
) -> Result<Vec<AgentId>, Error> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let (tasks, tokens): (Vec<i64>, Vec<i64>) = leases.iter().map(|(task, token)| (task.get(), token.get())).unzip();
    let revoked = sqlx::query!(
        r#"
        update leases l set state = 'revoked', ended_at = now()
        from unnest($1::bigint[], $2::bigint[]) as ending (task_id, token)
        where l.task_id = ending.task_id and l.token = ending.token and l.state = 'active'
        returning l.task_id, l.agent_id
        "#,
        &tasks,
        &tokens,
    )
    .all(tx)
    .await?;
    Ok(revoked.into_iter().map(|row| row.agent_id).collect())
}

#[derive(Debug, Clone)]
pub(in crate::store) struct Completed {
    pub(in crate::store) task: Locked<TaskId>,
    pub(in crate::store) token: LeaseToken,
    /// Why the task fails, as a sentence and as a kind of reason; `None` if the task is done.
    pub(in crate::store) failure: Option<(String, &'static str)>,
}

/// Ends leases and their tasks with outcomes. This is a single statement, because it runs more
/// often than any other ending. A lease that was released or has expired becomes completed too.
pub(in crate::store) async fn complete(tx: &mut Tx<'_>, completed: &[Completed]) -> Result<(), Error> {
    let tasks: Vec<i64> = completed.iter().map(|one| one.task.get()).collect();
    let tokens: Vec<i64> = completed.iter().map(|one| one.token.get()).collect();
    let failure = |one: &Completed| one.failure.clone().unzip();
    let (failures, kinds): (Vec<Option<String>>, Vec<Option<&str>>) = completed.iter().map(failure).unzip();
    sqlx::query!(
        r#"
        with ended as (
            update leases l set state = 'completed', ended_at = now()
            from unnest($1::bigint[], $2::bigint[]) as reported (task_id, token)
            where l.task_id = reported.task_id and l.token = reported.token
        ), forgotten as (
            delete from checkpoints where task_id = any($1)
        )
        update tasks t
        set state = case when reported.failure is null then 'done'::task_state else 'failed'::task_state end,
            reason = reported.failure, reason_kind = reported.kind::reason_kind, state_since = now(),
            recrawl_at = now() + make_interval(secs => (select b.recrawl_interval_ms / 1000.0 from batches b where b.id = t.batch_id))
        from unnest($1::bigint[], $3::text[], $4::text[]) as reported (task_id, failure, kind)
        where t.id = reported.task_id
        "#,
        &tasks,
        &tokens,
        &failures as _,
        &kinds as _,
    )
    .run(tx)
    .await
}

/// Releases a lease that the agent returns, or whose crawl crashed (then `crash` is the error). A
/// task fails once it has crashed `max_crashes` times. Returns `false` if the lease is not active
/// or belongs to another agent.
pub async fn release(
    tx: &mut Tx<'_>,
    agent: AgentId,
    task: TaskId,
    token: LeaseToken,
    crash: Option<&str>,
    max_crashes: u32,
) -> Result<bool, Error> {
    let ending = crash.map_or(Ending::HandedBack, |with| Ending::Crashed { with, most: max_crashes });
    Ok(!end(tx, &[(task, token)], Some(agent), ending).await?.is_empty())
}

/// Releases a lease because the site asked for a pause: no agent crawls the site until `pause` is
/// over. Returns `false` if the lease is not active or belongs to another agent.
pub async fn pause(
    tx: &mut Tx<'_>,
    agent: AgentId,
    task: TaskId,
    token: LeaseToken,
    pause: Duration,
) -> Result<bool, Error> {
    let ended = end(tx, &[(task, token)], Some(agent), Ending::Anew).await?;
    let paused: Vec<_> = ended.into_iter().map(|(task, _)| (task, Cause::Pause(pause))).collect();
    holds::hold(tx, &paused).await?;
    Ok(!paused.is_empty())
}

/// Whose ended sessions lose their leases.
#[derive(Debug, Clone, Copy)]
pub enum ReleaseScope {
    Agent(AgentId),
    /// The reaper's scope.
    All,
}

/// Releases the active leases of ended sessions. A release counts as a crash of the task if the
/// session expired, or if another process superseded it. A task fails once it has crashed
/// `max_crashes` times. Waits for no lock: skips tasks that another transaction has locked, which a
/// later pass of the reaper releases. Returns the number of released leases.
pub async fn release_of_ended_sessions(tx: &mut Tx<'_>, of: ReleaseScope, max_crashes: u32) -> Result<u64, Error> {
    let lost = match of {
        ReleaseScope::Agent(agent) => lost_of_agent(tx, agent).await?,
        ReleaseScope::All => lost(tx).await?,
    };
    let ended = end(tx, &lost, None, Ending::Lost { most: max_crashes }).await?;
    Ok(u64::try_from(ended.len()).unwrap_or(u64::MAX))
}

/// Locks the tasks of all leases whose session has ended. Returns the leases.
async fn lost(tx: &mut Tx<'_>) -> Result<Vec<(TaskId, LeaseToken)>, Error> {
    let rows = sqlx::query!(
        r#"
        -- Finds each next session with leases by index. Most leases belong to active sessions, and
        -- are not read.
        with recursive holding (session_id) as (
            select min(session_id) from leases where state = 'active'
            union all
            select (select min(l.session_id) from leases l where l.state = 'active' and l.session_id > h.session_id)
            from holding h where h.session_id is not null
        ), lost as materialized (
            select l.task_id, l.token
            from holding
            join sessions s on s.id = holding.session_id and s.state <> 'active'
            -- `offset 0` prevents a join, which would read all active leases.
            cross join lateral (
                select task_id, token from leases where session_id = s.id and state = 'active' offset 0
            ) l
        )
        select t.id, t.token from lost join tasks t on t.id = lost.task_id and t.token = lost.token
        order by t.id
        for update of t skip locked
        "#,
    )
    .all(tx)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.token)).collect())
}

/// Like [`lost`], but only of one agent's sessions.
async fn lost_of_agent(tx: &mut Tx<'_>, agent: AgentId) -> Result<Vec<(TaskId, LeaseToken)>, Error> {
    let rows = sqlx::query!(
        r#"
        with lost as materialized (
            select l.task_id, l.token
            from leases l join sessions s on s.id = l.session_id
            where l.agent_id = $1 and l.state = 'active' and s.state <> 'active'
        )
        select t.id, t.token from lost join tasks t on t.id = lost.task_id and t.token = lost.token
        order by t.id
        for update of t skip locked
        "#,
        agent.get(),
    )
    .all(tx)
    .await?;
    Ok(rows.into_iter().map(|row| (row.id, row.token)).collect())
}

/// Takes back at most `limit` leases whose agent sends heartbeats, but has neither ended the crawl
/// nor returned the lease within `overtime` after the crawl's time limit. An agent that was cut off
/// can first report what it ended meanwhile, because `overtime` also counts from the beginning of
/// its new session, and a heartbeat must have come since. Skips tasks that another transaction has
/// locked. Returns the agents.
pub async fn take_overdue(tx: &mut Tx<'_>, overtime: Duration, limit: i64) -> Result<Vec<AgentId>, Error> {
    let rows = sqlx::query!(
        r#"
        with overdue as materialized (
            select l.task_id, l.token
            from leases l join sessions s on s.id = l.session_id and s.state = 'active'
            where l.state = 'active' and l.due_at < now() - $1::interval
              and s.renewed_at > greatest(l.due_at, s.opened_at) + $1::interval
            order by l.due_at
            limit $2
        )
        select t.id, t.token from overdue join tasks t on t.id = overdue.task_id and t.token = overdue.token
        order by t.id
        for update of t skip locked
        "#,
        Interval(overtime),
        limit,
    )
    .all(tx)
    .await?;
    let overdue: Vec<(TaskId, LeaseToken)> = rows.into_iter().map(|row| (row.id, row.token)).collect();
    let ended = end(tx, &overdue, None, Ending::Overdue).await?;
    Ok(ended.into_iter().map(|(_, agent)| agent).collect())
}

/// Returns this session's leases that were taken back without the agent, because their task was
/// cancelled or their crawl is overdue, and of which the agent has not been told yet. Marks them as
/// told. The caller must commit before it sends the messages.
pub async fn take_revoked(conn: &mut PgConnection, session: SessionId) -> Result<Vec<(TaskId, LeaseToken)>, Error> {
    let rows = sqlx::query!(
        r#"
        update leases set revocation_sent_at = now()
        where session_id = $1 and state in ('revoked', 'overdue') and revocation_sent_at is null
        returning task_id, token
        "#,
        session.get(),
    )
    .all(conn)
    .await?;
    Ok(rows.into_iter().map(|row| (row.task_id, row.token)).collect())
}

#[cfg(test)]
mod tests {
    use sqlx::PgPool;

    use super::*;
    use crate::store::agents::sessions::{self, Registration};
    use crate::store::fixtures::{self, Conn, LeasedTask};
    use crate::store::leases::outcomes::OutcomeAnswer;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn only_its_holder_can_hand_a_lease_back(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let LeasedTask { agent, task, .. } = fixtures::leased(&mut conn, "a").await;
        let (other, token) = (fixtures::agent(&mut conn, "b").await, fixtures::TOKEN);
        assert!(!release(&mut conn, other, task, token, None, fixtures::MAX_CRASHES).await.expect("release"));
        assert!(release(&mut conn, agent, task, token, None, fixtures::MAX_CRASHES).await.expect("release"));
        assert!(!release(&mut conn, agent, task, token, None, fixtures::MAX_CRASHES).await.expect("release"), "once");
        assert_eq!(fixtures::state(&mut conn, task).await, "assigned");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn an_overdue_lease_is_taken_back_once_heartbeats_came_after_its_limit(pool: PgPool) {
        let mut conn = pool.acquire().await.expect("connect");
        let LeasedTask { agent, session, task, .. } = fixtures::leased(&mut conn, "a").await;
        let overtime = Duration::from_secs(60);
        let taken = async |conn: &mut PgConnection| {
            fixtures::tx(conn, async |tx| take_overdue(tx, overtime, 10).await.expect("look")).await
        };
        let states = async |conn: &mut PgConnection| {
            let state =
                "select t.state || ', ' || l.state || ', ' || t.crashes from tasks t join leases l on l.task_id = t.id";
            fixtures::scalar::<String>(conn, state).await
        };
        fixtures::execute(&mut conn, "update leases set due_at = now() - interval '1 hour'").await;
        assert_eq!(taken(&mut conn).await, [], "the agent may just have come back, with an outcome");
        fixtures::execute(&mut conn, "update sessions set opened_at = now() - interval '2 hours'").await;
        fixtures::execute(&mut conn, "update sessions set renewed_at = now() - interval '61 minutes'").await;
        assert_eq!(taken(&mut conn).await, [], "no heartbeat came after the limit");
        assert!(fixtures::renew(&mut conn, session).await);
        let mut other = fixtures::begin(&pool).await;
        fixtures::execute(&mut other, "select from tasks for update").await;
        assert_eq!(taken(&mut conn).await, [], "it does not wait");
        other.commit().await.expect("commit");
        assert_eq!(states(&mut conn).await, "leased, active, 0");
        assert_eq!(taken(&mut conn).await, [agent]);
        assert_eq!(states(&mut conn).await, "located, overdue, 0");
        assert_eq!(
            take_revoked(&mut conn, session).await.expect("take"),
            [(task, fixtures::TOKEN)],
            "the agent is told"
        );
        let late = fixtures::complete(&mut conn, agent, task).await;
        assert!(matches!(late, OutcomeAnswer::Accepted { freed: false, .. }), "nobody has a newer lease: {late:?}");
    }

    #[derive(Debug, Clone, Copy)]
    enum End {
        Panic,
        Loss,
        Restart,
        Reconnection,
        HandBack,
        Goodbye,
    }

    /// Grants the only task and ends its lease. Returns the task's state, reason and number of
    /// crashes.
    async fn grant_and_end(
        conn: &mut PgConnection,
        agent: AgentId,
        task: TaskId,
        end: End,
    ) -> (String, Option<String>, i32) {
        let session = fixtures::session(conn, agent).await;
        let token = fixtures::grant(conn, agent, session).await[0].1;
        let release = async |conn: &mut PgConnection, crash| {
            fixtures::tx(conn, async |tx| release(tx, agent, task, token, crash, fixtures::MAX_CRASHES).await).await
        };
        match end {
            End::Panic => {
                assert!(release(conn, Some("index out of range")).await.expect("release"));
            }
            End::HandBack => {
                assert!(release(conn, None).await.expect("release"));
            }
            End::Loss => {
                fixtures::execute(
                    conn,
                    "update sessions set expires_at = now() - interval '1 second' where state = 'active'",
                )
                .await;
                sessions::expire_due(conn).await.expect("expire");
                fixtures::reap(conn).await;
            }
            // The agent's new process reports no lease.
            End::Restart => _ = fixtures::session(conn, agent).await,
            End::Reconnection => {
                let process = Some(7);
                let set =
                    sqlx::query("update sessions set process = $2 where id = $1").bind(session.get()).bind(process);
                set.execute(&mut *conn).await.expect("it said which process it is");
                let registration = Registration { process, ..fixtures::registration() };
                fixtures::open_session(conn, agent, &registration).await.expect("open");
            }
            End::Goodbye => {
                sessions::close(conn, session).await.expect("close");
                fixtures::reap(conn).await;
            }
        }
        sqlx::query_as("select state::text, reason, crashes from tasks where id = $1")
            .bind(task.get())
            .fetch_one(conn)
            .await
            .expect("read the task")
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_fifth_crash_of_a_task_is_its_last_and_what_is_handed_back_is_no_crash(mut conn: Conn) {
        let agent = fixtures::agent(&mut conn, "a").await;
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let site = fixtures::site(&mut conn, "a.cn").await;
        let task = fixtures::assigned(&mut conn, batch, site, agent).await;
        let ends = [
            (End::HandBack, 0),
            (End::Panic, 1),
            (End::Loss, 2),
            (End::Goodbye, 2),
            (End::Restart, 3),
            (End::Reconnection, 3),
            (End::HandBack, 3),
            (End::Panic, 4),
        ];
        for (end, crashes) in ends {
            let now = grant_and_end(&mut conn, agent, task, end).await;
            assert_eq!(now, ("assigned".to_owned(), None, crashes), "{end:?}");
        }
        for (end, reason) in [
            (End::Panic, "poison: its crawl crashed 5 times, at last with: index out of range"),
            (End::Loss, "poison: agent a was lost, 5 crashes in all"),
        ] {
            let mut tx = Tx::on(&mut conn).await.expect("begin");
            let now = grant_and_end(&mut tx, agent, task, end).await;
            assert_eq!(now, ("failed".to_owned(), Some(reason.to_owned()), 5), "{end:?}");
            tx.rollback().await.expect("rollback");
        }
    }
}
