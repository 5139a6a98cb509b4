//! Spending: what agents fetched for batches that have a quota, summed by the hour, so that a quota is looked up and not added up.
//!
//! An hour counts until all of it is a day ago: an agent never fetches more than its quota within 24 hours.

use sqlx::PgConnection;

use crate::model::{AgentId, TaskId};

use super::Error;
use super::rows::Statement;
use super::types::whole;

/// Adds what crawls of batches with a quota fetched. Run in the transaction that records their outcomes.
pub(super) async fn add(conn: &mut PgConnection, fetched: &[(TaskId, AgentId, u64)]) -> Result<(), Error> {
    let tasks: Vec<i64> = fetched.iter().map(|(task, ..)| task.get()).collect();
    let agents: Vec<i64> = fetched.iter().map(|(_, agent, _)| agent.get()).collect();
    let bytes: Vec<i64> = fetched.iter().map(|(.., bytes)| whole(*bytes)).collect();
    sqlx::query!(
        r#"
        insert into quota_spending as spent (batch_id, agent_id, hour, bytes, crawls)
        select t.batch_id, crawl.agent_id, date_trunc('hour', now()),
               -- An agent may report any number; the sum of a few need not fit.
               least(sum(crawl.bytes), 9223372036854775807)::bigint, count(*) filter (where crawl.bytes > 0)
        from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as crawl (task_id, agent_id, bytes)
        join tasks t on t.id = crawl.task_id
        group by t.batch_id, crawl.agent_id
        order by t.batch_id, crawl.agent_id
        on conflict (batch_id, agent_id, hour) do update
        set bytes = least(spent.bytes::numeric + excluded.bytes, 9223372036854775807)::bigint,
            crawls = spent.crawls + excluded.crawls
        "#,
        &tasks,
        &agents,
        &bytes,
    )
    .run(conn)
    .await
}

/// Deletes the hours that count no more.
pub async fn prune(conn: &mut PgConnection) -> Result<u64, Error> {
    let pruned = sqlx::query!("delete from quota_spending where hour <= now() - interval '25 hours'").affected(conn);
    Ok(pruned.await?)
}
