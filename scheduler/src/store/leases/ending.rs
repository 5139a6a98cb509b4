//! The only statements that end leases. These statements define the order in which tasks and leases
//! are locked.
//!
//! Invariant: a task is locked before its lease. Several tasks are locked in the order of their
//! identifiers. Without this order, two transactions that end leases could deadlock.

use sqlx::PgConnection;

use crate::model::{AgentId, LeaseToken, TaskId, words};
use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::tasks::holds;
use crate::store::types::whole;

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
        Revoked = "revoked",
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
    /// The lease's task was cancelled; the caller has locked the task.
    Revoked,
}

impl Ending<'_> {
    const fn state(self) -> LeaseState {
        match self {
            Self::HandedBack | Self::Crashed { .. } | Self::Anew => LeaseState::Released,
            Self::Lost { .. } => LeaseState::Expired,
            Self::Revoked => LeaseState::Revoked,
        }
    }
}

/// Ends leases that are active and, if `of` is set, belong to that agent; ignores other leases.
/// Returns the tasks of the ended leases, with their agents.
pub(in crate::store) async fn end(
    conn: &mut PgConnection,
    leases: &[(TaskId, LeaseToken)],
    of: Option<AgentId>,
    ending: Ending<'_>,
) -> Result<Vec<(TaskId, AgentId)>, Error> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let (tasks, tokens): (Vec<i64>, Vec<i64>) = leases.iter().map(|(task, token)| (task.get(), token.get())).unzip();
    if matches!(ending, Ending::Revoked) {
        return revoke(conn, &tasks, &tokens).await;
    }
    let (crash, most) = match ending {
        Ending::Crashed { with, most } => (Some(with), Some(most)),
        Ending::Lost { most } => (None, Some(most)),
        Ending::HandedBack | Ending::Anew | Ending::Revoked => (None, None),
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
                         format('poison: ' || case when $4 is null then 'its agent was lost, %s crashes in all'
                                                   else 'its crawl crashed %s times, at last with: %s' end, $6, $4)
                     end,
            reason_kind = case when j.given_up then 'poison'::reason_kind end, state_since = now()
        from judged j where t.id = j.task_id
        returning t.id, j.agent_id, j.given_up as "given_up!"
        "#,
        &tasks,
        &tokens,
        ending.state(),
        crash,
        of.map(AgentId::get),
        most.map(whole::<i32, _>),
        matches!(ending, Ending::Anew),
    )
    .all(conn)
    .await?;
    let given_up: Vec<TaskId> = ended.iter().filter(|row| row.given_up).map(|row| row.id).collect();
    if !given_up.is_empty() {
        holds::end(conn, &given_up).await?;
    }
    Ok(ended.into_iter().map(|row| (row.id, row.agent_id)).collect())
}

async fn revoke(conn: &mut PgConnection, tasks: &[i64], tokens: &[i64]) -> Result<Vec<(TaskId, AgentId)>, Error> {
    let revoked = sqlx::query!(
        r#"
        update leases l set state = 'revoked', ended_at = now()
        from unnest($1::bigint[], $2::bigint[]) as ending (task_id, token)
        where l.task_id = ending.task_id and l.token = ending.token and l.state = 'active'
        returning l.task_id, l.agent_id
        "#,
        tasks,
        tokens,
    )
    .all(conn)
    .await?;
    Ok(revoked.into_iter().map(|row| (row.task_id, row.agent_id)).collect())
}

#[derive(Debug, Clone)]
pub(in crate::store) struct Completed {
    pub(in crate::store) task: TaskId,
    pub(in crate::store) token: LeaseToken,
    /// Why the task fails, as a sentence and as a kind of reason; `None` if the task is done.
    pub(in crate::store) failure: Option<(String, &'static str)>,
}

/// Ends leases and their tasks with outcomes. This is a single statement, because it runs more
/// often than any other ending. A lease that was released or has expired becomes completed too. The
/// caller has locked the tasks.
pub(in crate::store) async fn complete(conn: &mut PgConnection, completed: &[Completed]) -> Result<(), Error> {
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
    .run(conn)
    .await
}
