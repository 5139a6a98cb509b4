//! What each agent did.

use std::collections::HashMap;

use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, Rtt};
use crate::store::Error;
use crate::store::agents::{self, Agent, ServiceState};
use crate::store::rows::Rows;
use crate::store::types::Unsigned;
use crate::strategy::LoadLevel;

/// What one agent did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentRow {
    pub agent: String,
    pub city: String,
    pub carrier: String,
    /// Whether it is a landmark.
    pub landmark: bool,
    /// Whether a session is active, and its stream open.
    pub connected: bool,
    /// Whether it takes work.
    pub service: ServiceState,
    /// Tasks whose newest assignment is this agent.
    pub assigned: u64,
    pub complete: u64,
    pub truncated: u64,
    pub failed: u64,
    pub pages: u64,
    pub bytes: u64,
    /// The mean of its crawls' median round trips.
    pub mean_rtt: Option<Rtt>,
    /// How full it is now, whatever the batch; `None` while it is away.
    pub level: Option<LoadLevel>,
}

/// Every agent and what it did, in one batch or in all, by name.
pub async fn agents(conn: &mut PgConnection, batch: Option<BatchId>) -> Result<Vec<AgentRow>, Error> {
    let fleet = agents::list(conn).await?;
    let fleet: HashMap<AgentId, Agent> = fleet.into_iter().map(|agent| (agent.id, agent)).collect();
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
                   -- An agent may report any number; the sum of a few need not fit.
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
    rows.into_iter()
        .filter_map(|row| Some((fleet.get(&row.id)?, row)))
        .map(|(agent, row)| {
            Ok(AgentRow {
                agent: agent.name.clone(),
                city: agent.city.clone(),
                carrier: agent.carrier.clone(),
                landmark: agent.landmark,
                connected: agent.connected && !agent.hung_up,
                service: agent.service(),
                assigned: row.assigned.0,
                complete: row.complete.0,
                truncated: row.truncated.0,
                failed: row.failed.0,
                pages: row.pages.0,
                bytes: row.bytes.0,
                mean_rtt: row.mean_rtt_us,
                level: agent.level(),
            })
        })
        .collect()
}
