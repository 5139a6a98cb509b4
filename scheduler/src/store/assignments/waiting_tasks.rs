//! Waiting tasks: reads the tasks that wait for an agent, in the order in which agents are chosen
//! for them, and the tasks that wait at an agent and may move to another one.
//!
//! Each task that waits for an agent is read with its former agent and the reason why the task left
//! that agent.
//!
//! A task moves to another agent only if its assignment has not changed since the task was read. If
//! concurrent transactions move, grant, withdraw or cancel the same task, only the first
//! transaction succeeds. A move does not wait for the other transactions.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::{
    AgentId, AssignmentId, BatchId, ChoiceReasons, FormerAgent, Parting, Rtt, SiteId, Strategy, TaskId, Unmeasured,
    UnmeasuredCause,
};
use crate::store::agents::sessions::EndCause;
use crate::store::leases::LeaseState;
use crate::store::rows_and_errors::Rows;
use crate::store::types::Interval;
use crate::store::{Error, Locked, Tx};
use crate::strategy::{RecordedCandidate, RecordedChoice};

/// A task that needs an agent.
#[derive(Debug, Clone)]
pub struct WaitingTask {
    pub task: TaskId,
    pub site: SiteId,
    pub batch: BatchId,
    pub strategy: Strategy,
    /// Why no round trip to the site is known; `None` if one is known.
    pub unmeasured: Option<Unmeasured>,
    /// Number of earlier assignments of the task.
    pub choices: i64,
    pub former: Option<RecordedChoice>,
    /// The agent of the task's newest assignment, and why the task left that agent.
    pub parted: Option<FormerAgent>,
    /// Time since the task entered its present state.
    pub waited: Duration,
}

/// Selects tasks by their batches' strategies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool<'a> {
    /// Tasks whose strategies choose an agent for each task separately.
    EachByItself,
    /// Tasks of the strategy `earliest-finish`, which plans all tasks together.
    Together {
        /// Batches to omit.
        without: &'a [BatchId],
    },
}

/// Located tasks that are not held. Tasks that have ever been leased come first, then the oldest
/// tasks. Locks the returned tasks until the transaction ends, and skips tasks that another
/// scheduler has locked.
pub async fn waiting(
    tx: &mut Tx<'_>,
    pool: Pool<'_>,
    limit: i64,
) -> Result<(Vec<WaitingTask>, HashSet<Locked<TaskId>>), Error> {
    let next = match pool {
        Pool::EachByItself => next_alone(tx, limit).await?,
        Pool::Together { without } => next_planned(tx, without, limit).await?,
    };
    if next.is_empty() {
        return Ok(Default::default());
    }
    let rows = sqlx::query_as!(
        Row,
        r#"
        select t.id, t.site_id, t.batch_id, t.unmeasured, t.unmeasured_detail, b.strategy,
               now() - t.state_since as "waited!: Interval",
               (select count(*) from assignments a where a.task_id = t.id) as "choices!",
               c.agent_id as "agent_id?", a.name as "agent?", c.strategy as "chosen_by?", c.detail as "detail?",
               c.candidates as "candidates?", c.predicted_us as "predicted_us?: Vec<Option<Rtt>>",
               c.measured_us as "measured_us?: Vec<Option<Rtt>>",
               had.state as "lease?", had.crashed as "crashed?", had.end_cause as "end_cause?",
               a.removed_at is not null as "removed?", a.draining_since is not null as "drains?", there.paused as "paused?", there.disconnected as "disconnected?"
        from tasks t
        join batches b on b.id = t.batch_id
        -- A task with a hold here is admitted to its address. Its former choice is ignored, because
        -- the former agent did not cause the hold.
        left join assignments c on c.id = t.assignment_id
            and not exists (select from task_holds h where h.task_id = t.id)
        left join agents a on a.id = c.agent_id
        -- `offset 0` forces a lookup by index for each task, instead of a join.
        left join lateral (
            select l.state, l.crash is not null as crashed,
                   s.end_cause
            -- This is a left join, because an ended session is deleted before its leases.
            from leases l left join sessions s on s.id = l.session_id
            where l.task_id = t.id and l.token = t.token and l.agent_id = c.agent_id and l.granted_at >= c.created_at
            offset 0
        ) had on true
        left join lateral (
            select s.paused is not null as paused, s.disconnected_at is not null as disconnected
            from sessions s where s.agent_id = c.agent_id and s.state = 'active'
            offset 0
        ) there on true
        where t.id = any($1)
        order by t.token = 0, t.id
        "#,
        &next as _,
    )
    .all(tx)
    .await?;
    Ok((rows.into_iter().map(WaitingTask::from).collect(), next.into_iter().collect()))
}

/// Returns which of these tasks still need an agent. Locks the returned tasks until the
/// transaction ends, and skips tasks that another scheduler has locked.
pub async fn still_waiting(tx: &mut Tx<'_>, tasks: &[TaskId]) -> Result<HashSet<Locked<TaskId>>, Error> {
    let locked = sqlx::query_scalar!(
        "select id from tasks where id = any($1) and state::text = 'located' and not held order by id for update skip locked",
        tasks as _,
    );
    locked.locked(tx).await
}

/// Reads tasks through an index, so the cost does not depend on the number of waiting tasks.
async fn next_alone(tx: &mut Tx<'_>, limit: i64) -> Result<Vec<Locked<TaskId>>, Error> {
    let next = sqlx::query_scalar!(
        r#"
        select id from tasks
        where state = 'located' and not held and choice = 'alone'
        order by token = 0, id
        limit $1
        for update skip locked
        "#,
        limit,
    );
    next.locked(tx).await
}

/// Reads tasks batch by batch through an index. Reads no row of an omitted batch, and at most
/// `limit` rows of any other batch.
async fn next_planned(tx: &mut Tx<'_>, without: &[BatchId], limit: i64) -> Result<Vec<Locked<TaskId>>, Error> {
    let next = sqlx::query_scalar!(
        r#"
        with recursive planned (batch_id) as (
            select min(batch_id) from tasks where state = 'located' and not held and choice = 'planned'
            union all
            select (
                select min(t.batch_id) from tasks t
                where t.state = 'located' and not t.held and t.choice = 'planned' and t.batch_id > p.batch_id
            )
            from planned p where p.batch_id is not null
        ), next as materialized (
            select w.id from planned p
            cross join lateral (
                select t.id, t.token = 0 as fresh from tasks t
                where t.batch_id = p.batch_id and t.state = 'located' and not t.held and t.choice = 'planned'
                order by t.token = 0, t.id
                limit $2
            ) w
            where p.batch_id <> all($1)
            order by w.fresh, w.id
            limit $2
        )
        select t.id from tasks t
        where t.id in (select id from next) and t.state = 'located' and not t.held
        order by t.token = 0, t.id
        for update of t skip locked
        "#,
        without as _,
        limit,
    );
    next.locked(tx).await
}

/// A task with its newest assignment, the chosen agent, and the lease under that assignment.
struct Row {
    id: TaskId,
    site_id: SiteId,
    batch_id: BatchId,
    unmeasured: Option<UnmeasuredCause>,
    unmeasured_detail: Option<String>,
    strategy: Strategy,
    waited: Duration,
    choices: i64,
    agent_id: Option<AgentId>,
    agent: Option<String>,
    chosen_by: Option<Strategy>,
    detail: Option<ChoiceReasons>,
    candidates: Option<Vec<AgentId>>,
    predicted_us: Option<Vec<Option<Rtt>>>,
    measured_us: Option<Vec<Option<Rtt>>>,
    lease: Option<LeaseState>,
    crashed: Option<bool>,
    end_cause: Option<EndCause>,
    removed: Option<bool>,
    drains: Option<bool>,
    paused: Option<bool>,
    disconnected: Option<bool>,
}

impl From<Row> for WaitingTask {
    fn from(row: Row) -> Self {
        let parting = row.parting();
        let former = match (row.agent_id, row.chosen_by, row.candidates) {
            (Some(agent), Some(chosen_by), Some(candidates)) => {
                let (predicted, measured) = (row.predicted_us.unwrap_or_default(), row.measured_us.unwrap_or_default());
                Some(RecordedChoice {
                    agent,
                    strategy: chosen_by,
                    fallback: row.detail.and_then(|why| why.fallback),
                    listed: listed(&candidates, &predicted, &measured),
                })
            }
            _ => None,
        };
        let said = row.unmeasured_detail.unwrap_or_default();
        Self {
            task: row.id,
            site: row.site_id,
            batch: row.batch_id,
            strategy: row.strategy,
            unmeasured: row.unmeasured.map(|cause| Unmeasured { cause, said }),
            choices: row.choices,
            former,
            parted: row.agent.map(|agent| FormerAgent { agent, how: parting }),
            waited: row.waited,
        }
    }
}

impl Row {
    /// Why the task left its former agent.
    fn parting(&self) -> Parting {
        match (self.lease, self.end_cause) {
            (Some(LeaseState::Expired), Some(EndCause::Superseded)) => Parting::Restarted,
            (Some(LeaseState::Expired), Some(EndCause::Reconnected)) => Parting::Reconnected,
            (Some(LeaseState::Expired), Some(EndCause::Replaced)) => Parting::Replaced,
            (Some(LeaseState::Expired), Some(EndCause::Left)) => Parting::Left,
            (Some(LeaseState::Expired), Some(EndCause::Removed)) => Parting::Removed,
            (Some(LeaseState::Expired), Some(EndCause::Restored)) => Parting::Restored,
            (Some(LeaseState::Expired), _) => Parting::Lost,
            (Some(_), _) if self.crashed == Some(true) => Parting::Crashed,
            (Some(_), _) if self.drains == Some(true) => Parting::Drained,
            (Some(_), _) => Parting::HandedBack,
            // `paused` and `disconnected` are `None` if the agent has no active session.
            (None, _) => match self.paused.zip(self.disconnected) {
                _ if self.removed == Some(true) => Parting::WaitedRemoved,
                _ if self.drains == Some(true) => Parting::WaitedDrained,
                None => Parting::WaitedAway,
                Some((_, true)) => Parting::WaitedDisconnected,
                Some((true, _)) => Parting::WaitedPaused,
                Some(_) => Parting::WaitedExcluded,
            },
        }
    }
}

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
fn listed(candidates: &[AgentId], predicted: &[Option<Rtt>], measured: &[Option<Rtt>]) -> Vec<RecordedCandidate> {
    let at = |round_trips: &[Option<Rtt>], place: usize| round_trips.get(place).copied().flatten();
    let one =
        |(place, &agent)| RecordedCandidate { agent, predicted: at(predicted, place), measured: at(measured, place) };
    candidates.iter().enumerate().map(one).collect()
}

/// Locks and returns the tasks that can move now. Omits tasks whose assignment has changed since
/// the task was read, and tasks that another transaction has locked.
pub async fn hold_on(tx: &mut Tx<'_>, waiting: &[&QueuedTask]) -> Result<BTreeSet<Locked<TaskId>>, Error> {
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
    );
    held.locked(tx).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixtures::{self, Conn};

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_task_whose_lease_was_lost_is_chosen_for_before_those_that_never_had_one(mut conn: Conn) {
        let mut conn = Tx::on(&mut conn).await.expect("begin");
        let batch = fixtures::batch(&mut conn, "b", "random").await;
        let tasks = fixtures::located(&mut conn, batch, &["a.cn", "b.cn", "c.cn"]).await;
        fixtures::execute_for(&mut conn, "update tasks set token = 1 where id = $1", tasks[2]).await;
        let (chosen, _) = waiting(&mut conn, Pool::EachByItself, 2).await.expect("look");
        assert_eq!(chosen.iter().map(|task| task.task).collect::<Vec<_>>(), [tasks[2], tasks[0]]);
    }
}
