//! Reads and locks the waiting tasks that may move from one agent to another.
//!
//! A task moves only if its assignment has not changed since the task was read. If concurrent
//! transactions move, grant, withdraw or cancel the same task, only the first transaction succeeds.
//! A move does not wait for the other transactions.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{AgentId, AssignmentId, BatchId, Rtt, SiteId, TaskId};
use crate::store::Error;
use crate::store::rows::Rows;
use crate::strategy::{RecordedCandidate, RecordedChoice};

/// A task that is assigned but not begun.
#[derive(Debug, Clone)]
pub struct QueuedTask {
    pub task: TaskId,
    pub site: SiteId,
    pub batch: BatchId,
    pub assignment: AssignmentId,
    pub chosen_at: DateTime<Utc>,
    pub seed: u64,
    pub former: RecordedChoice,
}

/// The tasks that wait at these agents: at most `each` per agent, starting with the task that would
/// be granted last. Omits tasks whose site has an active lease, because they would have to wait at
/// any agent.
pub async fn waiting_at(conn: &mut PgConnection, agents: &[AgentId], each: i64) -> Result<Vec<QueuedTask>, Error> {
    let rows = sqlx::query!(
        r#"
        select t.id as task_id, t.site_id, t.batch_id, c.id, c.created_at, c.agent_id, c.strategy, c.seed, c.detail,
               c.candidates, c.predicted_us as "predicted_us!: Vec<Option<Rtt>>",
               c.measured_us as "measured_us!: Vec<Option<Rtt>>"
        from unnest($1::bigint[]) as queue (agent_id)
        cross join lateral (
            select t.id, t.site_id, t.batch_id, t.assignment_id from tasks t
            where t.agent_id = queue.agent_id and t.state = 'assigned'
              -- `offset 0` forces a lookup by index for each task, as in `leases::choose`.
              and not exists (select from leases l where l.site_id = t.site_id and l.state = 'active' offset 0)
            -- The reverse order of grants, which the index `tasks_in_turn` provides.
            order by t.token = 0 desc, t.id desc
            limit $2
        ) t
        join assignments c on c.id = t.assignment_id
        "#,
        agents as _,
        each,
    )
    .all(conn)
    .await?;
    let waiting = rows.into_iter().map(|row| QueuedTask {
        task: row.task_id,
        site: row.site_id,
        batch: row.batch_id,
        assignment: row.id,
        chosen_at: row.created_at,
        seed: row.seed.cast_unsigned(),
        former: RecordedChoice {
            agent: row.agent_id,
            strategy: row.strategy,
            fallback: row.detail.and_then(|why| why.fallback),
            listed: listed(&row.candidates, &row.predicted_us, &row.measured_us),
        },
    });
    Ok(waiting.collect())
}

/// Combines three parallel arrays of a stored assignment into its candidates.
pub(in crate::store) fn listed(
    candidates: &[AgentId],
    predicted: &[Option<Rtt>],
    measured: &[Option<Rtt>],
) -> Vec<RecordedCandidate> {
    let at = |round_trips: &[Option<Rtt>], place: usize| round_trips.get(place).copied().flatten();
    let one =
        |(place, &agent)| RecordedCandidate { agent, predicted: at(predicted, place), measured: at(measured, place) };
    candidates.iter().enumerate().map(one).collect()
}

/// Locks and returns the tasks that can move now. Omits tasks whose assignment has changed since
/// the task was read, and tasks that another transaction has locked.
pub async fn hold_on(conn: &mut PgConnection, waiting: &[&QueuedTask]) -> Result<BTreeSet<TaskId>, Error> {
    let (tasks, assignments): (Vec<i64>, Vec<i64>) =
        waiting.iter().map(|one| (one.task.get(), one.assignment.get())).unzip();
    let held = sqlx::query_scalar!(
        r#"
        select t.id
        from unnest($1::bigint[], $2::bigint[]) as looked_at (task_id, assignment_id)
        join tasks t on t.id = looked_at.task_id and t.assignment_id = looked_at.assignment_id
        where t.state = 'assigned'
        order by t.id
        for no key update of t skip locked
        "#,
        &tasks,
        &assignments,
    )
    .all(conn)
    .await?;
    Ok(held.into_iter().collect())
}
