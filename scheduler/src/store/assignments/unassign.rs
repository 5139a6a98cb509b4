//! Withdraws tasks from agents that have not begun them.

use std::time::Duration;

use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, TaskId};
use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::types::Interval;

/// Which tasks are withdrawn.
#[derive(Debug, Clone, Copy)]
pub enum UnassignScope<'a> {
    /// All tasks of one agent. Waits for transactions that are granting a lease of one of these
    /// tasks.
    Agent(AgentId),
    /// Tasks of agents that have no active session, or are draining or paused. If other agents are
    /// connected, also tasks of agents that have been disconnected for longer than this duration.
    Unavailable(Duration),
    /// For each pair of a batch and an agent, the batch's tasks that are assigned to the agent. The
    /// batch now excludes the agent.
    Excluded(&'a [(BatchId, AgentId)]),
}

/// Withdraws at most `limit` tasks, for which an agent is then chosen again. Skips tasks locked by
/// another transaction, unless `from` is [`UnassignScope::Agent`]. Returns the number of withdrawn
/// tasks.
pub async fn unassign(conn: &mut PgConnection, from: UnassignScope<'_>, limit: i64) -> Result<u64, Error> {
    let locked = match from {
        UnassignScope::Agent(agent) => of_agent(conn, agent, limit).await?,
        UnassignScope::Unavailable(patience) => of_unavailable(conn, patience, limit).await?,
        UnassignScope::Excluded(pairs) => of_excluded(conn, pairs, limit).await?,
    };
    if locked.is_empty() {
        return Ok(0);
    }
    sqlx::query!(
        "update tasks set state = 'located', reason = null, state_since = now() where id = any($1)",
        &locked as _,
    )
    .affected(conn)
    .await
}

async fn of_agent(conn: &mut PgConnection, agent: AgentId, limit: i64) -> Result<Vec<TaskId>, Error> {
    let locked = sqlx::query_scalar!(
        "select id from tasks where state = 'assigned' and agent_id = $1 order by id limit $2 for update",
        agent.get(),
        limit,
    );
    locked.all(conn).await
}

async fn of_unavailable(conn: &mut PgConnection, patience: Duration, limit: i64) -> Result<Vec<TaskId>, Error> {
    let locked = sqlx::query_scalar!(
        r#"
        with there as (
            select s.agent_id, s.disconnected_at from sessions s where s.state = 'active' and s.paused is null
        ), unavailable as (
            select a.id from agents a
            where a.draining_since is not null
               or not exists (select from there where there.agent_id = a.id)
               -- Leased tasks stay until the session expires. Assigned tasks stay if all agents are
               -- disconnected: probably the network failed, and no other agent can get the tasks.
               or exists (select from there where there.agent_id = a.id and disconnected_at <= now() - $2::interval)
                  and exists (select from there where disconnected_at is null)
        )
        -- Looks up each unavailable agent's tasks by index, and reads no task of other agents.
        select t.id as "id!: TaskId"
        from unavailable cross join lateral (
            select id from tasks
            where tasks.agent_id = unavailable.id and tasks.state = 'assigned'
            limit $1
            for update skip locked
        ) t
        limit $1
        "#,
        limit,
        Interval(patience),
    );
    locked.all(conn).await
}

async fn of_excluded(conn: &mut PgConnection, from: &[(BatchId, AgentId)], limit: i64) -> Result<Vec<TaskId>, Error> {
    let (batches, agents): (Vec<i64>, Vec<i64>) = from.iter().map(|(batch, agent)| (batch.get(), agent.get())).unzip();
    let locked = sqlx::query_scalar!(
        r#"
        select t.id as "id!: TaskId" from unnest($1::bigint[], $2::bigint[]) as not_for (batch_id, agent_id)
        cross join lateral (
            select id from tasks
            where tasks.batch_id = not_for.batch_id and tasks.agent_id = not_for.agent_id and tasks.state = 'assigned'
            limit $3
            for update skip locked
        ) t
        limit $3
        "#,
        &batches,
        &agents,
        limit,
    );
    locked.all(conn).await
}
