//! Causes of waits: why tasks without an agent wait. Unmet tasks: located tasks that no agent may
//! crawl.
//!
//! While no task can proceed in a stage (measuring, locating or choosing), one row in
//! `stage_causes` stores the cause for all tasks in that stage. The stage's pass writes the row
//! when the cause changes. If a task has a hold, the cause of the hold takes precedence over the
//! cause of the stage. This module stores causes, not the sentences that explain them.
//!
//! This file also finds batches with tasks that are assigned but not begun.
//!
//! An unmet task is held until it is released or fails. The reason is stored once per batch.

use std::collections::{HashMap, HashSet};

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::model::constraints::{Constraints, NoEligibleAgent};
use crate::model::{BatchId, Stage, Strategy, TaskId, TaskState, WaitCause};
use crate::store::batches::constraints_and_quotas;
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::tasks::holds::{self, Cause, HoldFilter};
use crate::store::{Error, Locked, Tx};
use crate::strategy::explain::{ExplainedWait, WaitDetail};

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
    let why = why(conn, &unmet.into_iter().collect::<Vec<_>>()).await?;
    Ok(rows
        .into_iter()
        .map(|row| {
            let cause = closed.wait_cause(row.state, row.strategy, row.held);
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
/// for its turn, for measurements, or for the choice of an agent. `waiting` gives the number of the
/// batch's tasks without an agent, by state and cause of their hold.
pub(in crate::store) async fn commonest(
    conn: &mut PgConnection,
    batch: BatchId,
    strategy: Strategy,
    waiting: impl Iterator<Item = (TaskState, Option<WaitCause>, u64)>,
) -> Result<Option<(ExplainedWait, u64)>, Error> {
    let closed = ClosedStages::read(&mut *conn).await?;
    let why = why(conn, &[batch]).await?.remove(&batch);
    let mut counted: Vec<(ExplainedWait, u64)> = Vec::new();
    for (state, held, tasks) in waiting.filter(|(.., tasks)| *tasks > 0) {
        let cause = closed.wait_cause(state, strategy, held);
        let wait = ExplainedWait { cause, about: about(cause, why.as_ref()) };
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

    /// Why a task without an agent waits, by its state, its batch's strategy and its hold.
    fn wait_cause(&self, state: TaskState, strategy: Strategy, held: Option<WaitCause>) -> WaitCause {
        if let Some(held) = held {
            return held;
        }
        let stage = if state == TaskState::Located { Stage::Choosing } else { Stage::Measuring };
        match self.cause(stage) {
            Some(cause) => cause,
            None if !self.connected => WaitCause::NoAgent,
            None => match state {
                TaskState::Measuring => self.cause(Stage::Locating).unwrap_or(WaitCause::Measurements),
                TaskState::Located if strategy == Strategy::EarliestFinish => WaitCause::Planned,
                TaskState::Located => WaitCause::Choice,
                _ => WaitCause::Queued,
            },
        }
    }
}

/// Fails located tasks that no agent may crawl.
pub async fn fail(tx: &mut Tx<'_>, tasks: &[Locked<TaskId>], reason: &str) -> Result<(), Error> {
    holds::end(tx, tasks).await?;
    sqlx::query!(
        r#"
        update tasks set state = 'failed', reason = $2, reason_kind = 'no-agent', state_since = now()
        where id = any($1) and state::text = 'located'
        "#,
        tasks as _,
        reason,
    )
    .run(tx)
    .await
}

/// Holds located tasks that no agent may crawl now.
pub async fn hold(
    tx: &mut Tx<'_>,
    batch: BatchId,
    tasks: &[Locked<TaskId>],
    why: &NoEligibleAgent,
) -> Result<(), Error> {
    let unmet: Vec<_> = tasks.iter().map(|task| (*task, Cause::Unmet)).collect();
    holds::hold(tx, &unmet).await?;
    explain(tx, batch, why).await
}

/// Stores why a batch's unmet tasks wait.
pub async fn explain(conn: &mut PgConnection, batch: BatchId, why: &NoEligibleAgent) -> Result<(), Error> {
    sqlx::query!(
        r#"
        update batch_constraints set unmet_cause = $2, unmet_detail = $3
        where batch_id = $1 and (unmet_cause, unmet_detail) is distinct from ($2, $3)
        "#,
        batch.get(),
        why.cause,
        Json(&why.excluded) as _,
    )
    .run(conn)
    .await
}

/// The requirements of these batches, and the reason why their unmet tasks wait. Batches that never
/// had an unmet task are absent.
async fn why(
    conn: &mut PgConnection,
    batches: &[BatchId],
) -> Result<HashMap<BatchId, (Constraints, NoEligibleAgent)>, Error> {
    let mut asked = constraints_and_quotas::of_batches(conn, batches).await?;
    let rows = sqlx::query!(
        r#"
        select batch_id, unmet_cause as "cause!", unmet_detail as "excluded!"
        from batch_constraints where batch_id = any($1) and unmet_cause is not null
        "#,
        batches as _,
    )
    .all(conn)
    .await?;
    let why = rows.into_iter().map(|row| {
        let nobody = NoEligibleAgent { cause: row.cause, excluded: row.excluded };
        (row.batch_id, (asked.remove(&row.batch_id).unwrap_or_default(), nobody))
    });
    Ok(why.collect())
}

/// Batches with unmet tasks.
pub async fn batches(conn: &mut PgConnection) -> Result<Vec<BatchId>, Error> {
    sqlx::query_scalar!(
        r#"
        select c.batch_id from batch_constraints c
        where exists (select from task_holds h where h.batch_id = c.batch_id and h.cause = 'unmet')
        order by c.batch_id
        "#,
    )
    .all(conn)
    .await
}

/// Releases at most `limit` unmet tasks of a batch or, if `failure` is given, fails them for that
/// reason. Returns the number of these tasks. If a confirmation of one of the tasks' sites ended
/// without confirmers, also deletes the confirmation, so that the site is confirmed again.
pub async fn release(tx: &mut Tx<'_>, batch: BatchId, failure: Option<&str>, limit: i64) -> Result<u64, Error> {
    let (tasks, sites): (Vec<_>, Vec<_>) =
        holds::release(tx, HoldFilter::Unmet(batch), limit).await?.into_iter().unzip();
    if let Some(reason) = failure {
        fail(tx, &tasks, reason).await?;
    }
    sqlx::query!(
        r#"
        delete from confirmations r
        where r.site_id = any($1) and r.ended_at is not null and not exists (select from confirmers c where c.site_id = r.site_id)
        "#,
        &sites as _,
    )
    .run(tx)
    .await?;
    Ok(u64::try_from(tasks.len()).unwrap_or(u64::MAX))
}

/// The batches that have constraints and at least one task that is assigned but not begun.
pub async fn assigned(conn: &mut PgConnection) -> Result<Vec<BatchId>, Error> {
    sqlx::query_scalar!(
        r#"
        select c.batch_id from batch_constraints c
        where exists (select from tasks t where t.batch_id = c.batch_id and t.state = 'assigned')
        order by c.batch_id
        "#,
    )
    .all(conn)
    .await
}
