//! Causes of waits: why tasks without an agent wait.
//!
//! While no task can proceed in a stage (measuring, locating or choosing), one row in
//! `stage_causes` stores the cause for all tasks in that stage. The stage's pass writes the row
//! when the cause changes. If a task has a hold, the cause of the hold takes precedence over the
//! cause of the stage. This module stores causes, not the sentences that explain them.

use std::collections::{HashMap, HashSet};

use sqlx::PgConnection;

use crate::model::constraints::{Constraints, NoEligibleAgent};
use crate::model::{BatchId, Stage, Strategy, TaskId, TaskState, WaitCause};
use crate::strategy::explain::{ExplainedWait, WaitDetail};

use super::unmet;
use crate::store::Error;
use crate::store::rows::{Rows, Statement};
use crate::store::types::Unsigned;

/// Stores why no task can proceed in a stage; `None` if tasks can proceed.
pub async fn close(conn: &mut PgConnection, stage: Stage, cause: Option<WaitCause>) -> Result<(), Error> {
    sqlx::query!(
        r#"
        with opened as (
            delete from stage_causes where stage = $1 and $2::wait_cause is null
        )
        insert into stage_causes (stage, cause)
        select $1, $2 where $2 is not null
        on conflict (stage) do update set cause = excluded.cause, since = now()
        where stage_causes.cause <> excluded.cause
        "#,
        stage,
        cause as Option<WaitCause>,
    )
    .run(conn)
    .await
}

/// Why no agent can be chosen for any task; `None` if an agent can get work.
pub async fn nobody(conn: &mut PgConnection) -> Result<Option<WaitCause>, Error> {
    let there = sqlx::query!(
        r#"
        select count(*) > 0 as "connected!",
               coalesce(bool_or(s.paused is null and s.disconnected_at is null and a.draining_since is null), false) as "taking!"
        from sessions s join agents a on a.id = s.agent_id
        where s.state = 'active'
        "#
    )
    .one(conn)
    .await?;
    Ok(match (there.connected, there.taking) {
        (_, true) => None,
        (true, _) => Some(WaitCause::NoneAcceptsWork),
        (false, _) => Some(WaitCause::NoAgent),
    })
}

/// The reasons why these tasks wait. Tasks that have an agent are absent.
pub async fn of(conn: &mut PgConnection, tasks: &[TaskId]) -> Result<HashMap<TaskId, ExplainedWait>, Error> {
    let rows = sqlx::query!(
        r#"
        select t.id, t.batch_id, t.state, b.strategy, h.cause as "held?", abbrev(h.address) as address
        from tasks t
        join batches b on b.id = t.batch_id
        left join task_holds h on h.task_id = t.id and not h.admitted
        where t.id = any($1) and t.state in ('submitted', 'measuring', 'located')
        "#,
        tasks as _,
    )
    .all(conn)
    .await?;
    if rows.is_empty() {
        return Ok(HashMap::new());
    }
    let closed = ClosedStages::read(&mut *conn).await?;
    let unmet = rows.iter().filter(|row| row.held == Some(WaitCause::Unmet)).map(|row| row.batch_id);
    let unmet: HashSet<BatchId> = unmet.collect();
    let why = unmet::why(conn, &unmet.into_iter().collect::<Vec<_>>()).await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let standing = UnassignedTask { state: row.state, strategy: row.strategy, held: row.held };
            let cause = standing.waits_for(&closed);
            let about = match row.address {
                Some(address) => WaitDetail::Address(address),
                None => about(cause, why.get(&row.batch_id)),
            };
            (row.id, ExplainedWait { cause, about })
        })
        .collect())
}

/// The most frequent reason why tasks of this batch wait without an agent, and the number of tasks
/// that wait for this reason. Omits reasons that apply to every new task for a while: that it waits
/// for its turn, for measurements, or for the choice of an agent.
pub async fn commonest(conn: &mut PgConnection, batch: BatchId) -> Result<Option<(ExplainedWait, u64)>, Error> {
    let rows = sqlx::query!(
        r#"
        select t.state, b.strategy, h.cause as "held?", count(*) as "count!: Unsigned<u64>"
        from tasks t
        join batches b on b.id = t.batch_id
        left join task_holds h on h.task_id = t.id and not h.admitted
        where t.batch_id = $1 and t.state in ('submitted', 'measuring', 'located')
        group by 1, 2, 3
        "#,
        batch.get(),
    )
    .all(conn)
    .await?;
    let closed = ClosedStages::read(&mut *conn).await?;
    let why = unmet::why(conn, &[batch]).await?.remove(&batch);
    let mut counted: Vec<(ExplainedWait, u64)> = Vec::new();
    for row in rows {
        let standing = UnassignedTask { state: row.state, strategy: row.strategy, held: row.held };
        let cause = standing.waits_for(&closed);
        let wait = ExplainedWait { cause, about: about(cause, why.as_ref()) };
        let Unsigned(tasks) = row.count;
        match counted.iter_mut().find(|(one, _)| *one == wait) {
            Some((_, count)) => *count += tasks,
            None => counted.push((wait, tasks)),
        }
    }
    counted.retain(|(wait, _)| wait.cause.needs_saying());
    Ok(counted.into_iter().max_by_key(|(wait, count)| (*count, wait.cause.name())))
}

/// The details of a wait. For an unmet task, these are its batch's constraints and the reason why
/// no agent meets them.
fn about(cause: WaitCause, why: Option<&(Constraints, NoEligibleAgent)>) -> WaitDetail {
    let why = why.filter(|_| cause == WaitCause::Unmet);
    why.cloned().map_or(WaitDetail::Cause, |(asked, nobody)| WaitDetail::Constraints(asked, nobody))
}

struct ClosedStages {
    stages: HashMap<Stage, WaitCause>,
    /// Whether any agent is connected. This field is known even before a pass has stored the
    /// stage's cause.
    connected: bool,
}

impl ClosedStages {
    async fn read(conn: &mut PgConnection) -> Result<Self, Error> {
        let rows = sqlx::query!("select stage, cause from stage_causes").all(conn).await?;
        let stages = rows.into_iter().map(|row| (row.stage, row.cause)).collect();
        let connected =
            sqlx::query_scalar!(r#"select exists (select from sessions where state = 'active') as "there!""#);
        Ok(Self { stages, connected: connected.one(conn).await? })
    }

    fn cause(&self, stage: Stage) -> Option<WaitCause> {
        self.stages.get(&stage).copied()
    }
}

/// A task without an agent: its state, its batch's strategy and its hold.
struct UnassignedTask {
    state: TaskState,
    strategy: Strategy,
    held: Option<WaitCause>,
}

impl UnassignedTask {
    fn waits_for(&self, closed: &ClosedStages) -> WaitCause {
        if let Some(held) = self.held {
            return held;
        }
        let stage = if self.state == TaskState::Located { Stage::Choosing } else { Stage::Measuring };
        match closed.cause(stage) {
            Some(cause) => cause,
            None if !closed.connected => WaitCause::NoAgent,
            None => match self.state {
                TaskState::Measuring => closed.cause(Stage::Locating).unwrap_or(WaitCause::Measurements),
                TaskState::Located if self.strategy == Strategy::EarliestFinish => WaitCause::Planned,
                TaskState::Located => WaitCause::Choice,
                _ => WaitCause::Queued,
            },
        }
    }
}
