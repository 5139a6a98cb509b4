//! Explanations: all recorded choices of agents for a site's tasks.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::constraints::Exclusion;
use crate::model::{AssignmentId, BatchId, Rtt, TaskId, TaskState};
use crate::strategy::explain::{ExplainedChoice, ExplainedWait};

use crate::store::Error;
use crate::store::rows_and_errors::Rows;
use crate::store::sites::{Site, candidates};
use crate::store::tasks::unmet_and_wait_causes;

/// Maximum number of tasks, and of choices, in one explanation of a site. Older ones are omitted.
const MOST: i64 = 100;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub id: TaskId,
    pub batch: BatchId,
    pub batch_name: String,
    pub round: u32,
    pub state: TaskState,
    pub reason: Option<String>,
    /// Why the task waits, if it has no agent.
    pub waits: Option<ExplainedWait>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct TaskChoice {
    pub id: AssignmentId,
    pub task: TaskId,
    pub at: DateTime<Utc>,
    /// Whether this is the task's newest choice.
    pub newest: bool,
    pub recorded: ExplainedChoice,
    /// The names of the excluded agents, by the constraint that excluded them.
    pub excluded: BTreeMap<Exclusion, Vec<String>>,
}

/// The site's tasks of one batch or of all batches, newest first. If the assignment `at` is given,
/// returns only its task.
pub async fn tasks(
    conn: &mut PgConnection,
    site: &Site,
    batch: Option<BatchId>,
    at: Option<AssignmentId>,
) -> Result<Vec<Task>, Error> {
    let rows = sqlx::query!(
        r#"
        select t.id, t.batch_id, b.name, t.round, t.state,
               case when t.state in ('failed', 'cancelled') then t.reason end as reason
        from tasks t join batches b on b.id = t.batch_id
        where t.site_id = any($1) and ($2::bigint is null or t.batch_id = $2)
          and ($3::bigint is null or t.id = (select c.task_id from assignments c where c.id = $3))
        order by t.id desc
        limit $4
        "#,
        &site.ids() as _,
        batch.map(BatchId::get),
        at.map(AssignmentId::get),
        MOST,
    )
    .all(conn)
    .await?;
    let ids: Vec<TaskId> = rows.iter().map(|row| row.id).collect();
    let mut waits = unmet_and_wait_causes::of(conn, &ids).await?;
    let tasks = rows.into_iter().map(|row| Task {
        waits: waits.remove(&row.id),
        id: row.id,
        batch: row.batch_id,
        batch_name: row.name,
        round: row.round.0,
        state: row.state,
        reason: row.reason,
    });
    Ok(tasks.collect())
}

/// The choices for these tasks, newest first. If `at` is given, returns only that choice.
pub async fn choices(
    conn: &mut PgConnection,
    tasks: &[Task],
    at: Option<AssignmentId>,
) -> Result<Vec<TaskChoice>, Error> {
    let ids: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
    let rows = sqlx::query!(
        r#"
        select c.id, c.task_id, c.created_at, coalesce(t.assignment_id = c.id, false) as "newest!", a.name as agent, c.strategy,
               b.strategy as asked, c.seed, c.detail, c.available,
               (select coalesce(array_agg(n.name order by l.place), '{}')
                from unnest(c.candidates) with ordinality as l (agent, place) join agents n on n.id = l.agent) as "candidates!",
               c.predicted_us as "predicted_us!: Vec<Option<Rtt>>", c.measured_us as "measured_us!: Vec<Option<Rtt>>",
               coalesce(c.levels, '{}') as "levels!: Vec<Option<i64>>",
               (select coalesce(array_agg(n.name order by l.place), '{}')
                from unnest(x.agents) with ordinality as l (agent, place) join agents n on n.id = l.agent) as "excluded!",
               coalesce(x.causes, '{}') as "causes!"
        from assignments c
        join tasks t on t.id = c.task_id
        join batches b on b.id = t.batch_id
        join agents a on a.id = c.agent_id
        left join exclusions x on x.id = c.exclusions_id
        where c.task_id = any($1) and ($2::bigint is null or c.id = $2)
        order by c.id desc
        limit $3
        "#,
        &ids as _,
        at.map(AssignmentId::get),
        MOST,
    )
    .all(conn)
    .await?;
    let choices = rows.into_iter().map(|row| {
        let mut excluded: BTreeMap<Exclusion, Vec<String>> = BTreeMap::new();
        for (agent, cause) in row.excluded.iter().zip(&row.causes) {
            let cause = cause.parse().map_err(|_| Error::inconsistent("exclusions", "causes", cause))?;
            excluded.entry(cause).or_default().push(agent.clone());
        }
        Ok(TaskChoice {
            id: row.id,
            task: row.task_id,
            at: row.created_at,
            newest: row.newest,
            recorded: ExplainedChoice {
                strategy: row.strategy,
                asked: row.asked,
                agent: row.agent,
                seed: row.seed.cast_unsigned(),
                candidates: candidates(row.candidates, &row.predicted_us, &row.measured_us, &row.levels),
                available: row.available.map(u32::from),
                excluded: row.excluded.len(),
                why: row.detail.unwrap_or_default(),
            },
            excluded,
        })
    });
    choices.collect()
}
