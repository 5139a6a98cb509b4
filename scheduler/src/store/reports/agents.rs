//! Reads the work of each agent.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, Rtt};
use crate::store::Error;
use crate::store::agents::{self, Agent};
use crate::store::rows::Rows;
use crate::store::types::Unsigned;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRow {
    /// The agent's present state, which does not depend on the batch.
    pub agent: Agent,
    /// Number of tasks whose newest assignment is to this agent.
    pub assigned: u64,
    pub complete: u64,
    pub truncated: u64,
    /// Number of crawls that ended neither complete nor truncated.
    pub failed: u64,
    pub pages: u64,
    pub bytes: u64,
    /// The mean of the median round trips of the agent's crawls.
    pub mean_rtt: Option<Rtt>,
}

/// All agents, with the work that each has done in one batch or in all batches. Sorted by name.
pub async fn agents(conn: &mut PgConnection, batch: Option<BatchId>) -> Result<Vec<AgentRow>, Error> {
    let fleet = agents::list(conn).await?;
    let mut fleet: HashMap<AgentId, Agent> = fleet.into_iter().map(|agent| (agent.id, agent)).collect();
    let rows = sqlx::query!(
        r#"
        select a.id,
               coalesce(chosen.tasks, 0) as "assigned!: Unsigned<u64>",
               coalesce(crawled.complete, 0) as "complete!: Unsigned<u64>", coalesce(crawled.truncated, 0) as "truncated!: Unsigned<u64>",
               coalesce(crawled.failed, 0) as "failed!: Unsigned<u64>",
               coalesce(crawled.pages, 0) as "pages!: Unsigned<u64>", coalesce(crawled.bytes, 0) as "bytes!: Unsigned<u64>",
               crawled.mean_rtt_us as "mean_rtt_us?: Rtt"
        from agents a
        left join (
            select c.agent_id, count(*) as tasks
            from tasks t join assignments c on c.id = t.assignment_id
            where $1::bigint is null or t.batch_id = $1
            group by c.agent_id
        ) chosen on chosen.agent_id = a.id
        left join (
            select o.agent_id,
                   count(*) filter (where o.kind = 'complete') as complete,
                   count(*) filter (where o.kind = 'truncated') as truncated,
                   count(*) filter (where o.kind not in ('complete', 'truncated')) as failed,
                   sum(o.pages)::bigint as pages,
                   -- An agent may report any number, so the sum may not fit into a bigint.
                   least(sum(o.bytes), 9223372036854775807)::bigint as bytes,
                   ceil(avg(o.rtt_us))::bigint as mean_rtt_us
            from outcomes o join tasks t on t.id = o.task_id
            where $1::bigint is null or t.batch_id = $1
            group by o.agent_id
        ) crawled on crawled.agent_id = a.id
        order by a.name
        "#,
        batch.map(BatchId::get),
    )
    .all(conn)
    .await?;
    let rows = rows.into_iter().filter_map(|row| {
        Some(AgentRow {
            agent: fleet.remove(&row.id)?,
            assigned: row.assigned.0,
            complete: row.complete.0,
            truncated: row.truncated.0,
            failed: row.failed.0,
            pages: row.pages.0,
            bytes: row.bytes.0,
            mean_rtt: row.mean_rtt_us,
        })
    });
    Ok(rows.collect())
}
