//! Waits: why tasks without an agent wait.
//!
//! A stage that is closed to the whole fleet has one row, written by the pass that finds it so and only when that changes. What holds a
//! single task comes before its stage. Nothing here is a sentence.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::explain::Wait;
use crate::model::{BatchId, Stage, Strategy, TaskId, TaskState, WaitCause};

use super::{Error, unsigned};

/// Says why a stage is closed to the whole fleet, or that it is not.
pub async fn close(conn: &mut PgConnection, stage: Stage, cause: Option<WaitCause>) -> Result<(), Error> {
    sqlx::query!(
        r#"
        with opened as (
            delete from stage_causes where stage = $1::text::wait_stage and $2::text is null
        )
        insert into stage_causes (stage, cause)
        select $1::text::wait_stage, $2::text::wait_cause where $2::text is not null
        on conflict (stage) do update set cause = excluded.cause, since = now()
        where stage_causes.cause <> excluded.cause
        "#,
        stage.name(),
        cause.map(WaitCause::name),
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Why nobody can be chosen for any task; `None` while some agent takes work.
pub async fn nobody(conn: &mut PgConnection) -> Result<Option<WaitCause>, Error> {
    let there = sqlx::query!(
        r#"
        select count(*) > 0 as "connected!",
               coalesce(bool_or(s.paused is null and s.hung_up_at is null and a.draining_since is null), false) as "taking!"
        from sessions s join agents a on a.id = s.agent_id
        where s.state = 'active'
        "#
    )
    .fetch_one(conn)
    .await?;
    Ok(match (there.connected, there.taking) {
        (_, true) => None,
        (true, _) => Some(WaitCause::NobodyTakesWork),
        (false, _) => Some(WaitCause::NoAgent),
    })
}

/// Why those of these tasks wait that have no agent.
pub async fn of(conn: &mut PgConnection, tasks: &[TaskId]) -> Result<HashMap<TaskId, Wait>, Error> {
    let tasks: Vec<i64> = tasks.iter().map(|task| task.get()).collect();
    let rows = sqlx::query!(
        r#"
        select t.id, t.state::text as "state!", b.strategy,
               h.cause::text as "held?", case h.cause when 'address' then abbrev(h.address) when 'unmet' then c.reason end as about,
               exists (select from confirmations r where r.site_id = t.site_id and r.ended_at is null) as "confirming!"
        from tasks t
        join batches b on b.id = t.batch_id
        left join task_holds h on h.task_id = t.id and not h.admitted
        left join batch_constraints c on c.batch_id = t.batch_id
        where t.id = any($1) and t.state in ('submitted', 'measuring', 'located')
        "#,
        &tasks,
    )
    .fetch_all(&mut *conn)
    .await?;
    if rows.is_empty() {
        return Ok(HashMap::new());
    }
    let closed = Closed::read(conn).await?;
    rows.into_iter()
        .map(|row| {
            let standing = Standing::try_new(&row.state, &row.strategy, row.held.as_deref(), row.confirming)?;
            Ok((TaskId::new(row.id), Wait { cause: standing.waits_for(&closed), about: row.about.unwrap_or_default() }))
        })
        .collect()
}

/// What most tasks of a batch without an agent wait for, of that which needs saying, and how many they are.
pub async fn commonest(conn: &mut PgConnection, batch: BatchId) -> Result<Option<(Wait, u64)>, Error> {
    let rows = sqlx::query!(
        r#"
        select t.state::text as "state!", b.strategy,
               h.cause::text as "held?", case h.cause when 'unmet' then c.reason end as about,
               r.site_id is not null as "confirming!", count(*) as "count!"
        from tasks t
        join batches b on b.id = t.batch_id
        left join task_holds h on h.task_id = t.id and not h.admitted
        left join batch_constraints c on c.batch_id = t.batch_id
        left join confirmations r on r.site_id = t.site_id and r.ended_at is null
        where t.batch_id = $1 and t.state in ('submitted', 'measuring', 'located')
        group by 1, 2, 3, 4, 5
        "#,
        batch.get(),
    )
    .fetch_all(&mut *conn)
    .await?;
    let closed = Closed::read(conn).await?;
    let mut counted: Vec<(Wait, u64)> = Vec::new();
    for row in rows {
        let standing = Standing::try_new(&row.state, &row.strategy, row.held.as_deref(), row.confirming)?;
        let wait = Wait { cause: standing.waits_for(&closed), about: row.about.unwrap_or_default() };
        let tasks: u64 = unsigned("tasks", "count", row.count)?;
        match counted.iter_mut().find(|(one, _)| *one == wait) {
            Some((_, count)) => *count += tasks,
            None => counted.push((wait, tasks)),
        }
    }
    counted.retain(|(wait, _)| wait.cause.needs_saying());
    Ok(counted.into_iter().max_by_key(|(wait, count)| (*count, wait.cause.name())))
}

/// The stages that are closed to the whole fleet.
struct Closed {
    stages: HashMap<Stage, WaitCause>,
    /// Whether some agent is connected: so much is known before a pass says it.
    connected: bool,
}

impl Closed {
    async fn read(conn: &mut PgConnection) -> Result<Self, Error> {
        let rows = sqlx::query!(r#"select stage::text as "stage!", cause::text as "cause!" from stage_causes"#)
            .fetch_all(&mut *conn)
            .await?;
        let closed = rows.iter().map(|row| {
            let stage =
                Stage::named(&row.stage).ok_or_else(|| Error::inconsistent("stage_causes", "stage", &row.stage));
            let cause = WaitCause::named(&row.cause);
            Ok((stage?, cause.ok_or_else(|| Error::inconsistent("stage_causes", "cause", &row.cause))?))
        });
        let stages = closed.collect::<Result<_, Error>>()?;
        let connected =
            sqlx::query_scalar!(r#"select exists (select from sessions where state = 'active') as "there!""#);
        Ok(Self { stages, connected: connected.fetch_one(conn).await? })
    }

    fn cause(&self, stage: Stage) -> Option<WaitCause> {
        self.stages.get(&stage).copied()
    }
}

/// Where a task without an agent stands.
struct Standing {
    state: TaskState,
    strategy: Strategy,
    held: Option<WaitCause>,
    confirming: bool,
}

impl Standing {
    fn try_new(state: &str, strategy: &str, held: Option<&str>, confirming: bool) -> Result<Self, Error> {
        let cause =
            |word: &str| WaitCause::named(word).ok_or_else(|| Error::inconsistent("task_holds", "cause", &word));
        Ok(Self {
            state: TaskState::named(state).ok_or_else(|| Error::inconsistent("tasks", "state", &state))?,
            strategy: strategy.parse().map_err(|_| Error::inconsistent("batches", "strategy", &strategy))?,
            held: held.map(cause).transpose()?,
            confirming,
        })
    }

    fn waits_for(&self, closed: &Closed) -> WaitCause {
        if let Some(held) = self.held {
            return held;
        }
        let stage = if self.state == TaskState::Located { Stage::Choosing } else { Stage::Measuring };
        let confirms = self.strategy == Strategy::GnpConfirmed || self.strategy.confirms_the_unsure();
        match closed.cause(stage) {
            Some(cause) => cause,
            None if !closed.connected => WaitCause::NoAgent,
            None => match self.state {
                TaskState::Measuring => closed.cause(Stage::Locating).unwrap_or(WaitCause::Measurements),
                TaskState::Located if self.confirming && confirms => WaitCause::Confirming,
                TaskState::Located if self.strategy == Strategy::EarliestFinish => WaitCause::Planned,
                TaskState::Located => WaitCause::Choice,
                _ => WaitCause::Turn,
            },
        }
    }
}
