//! Constraints of batches: the requirements for agents, and the agents that were excluded.
//!
//! Invariant: constraints are stored with a batch's first submission and never change.
//! `crate::store::tasks::unmet` handles tasks that no agent may crawl.

use std::collections::{BTreeMap, HashMap};

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::model::constraints::{AgentTraits, Constraints, ConstraintsRequest, Exclusion};
use crate::model::{AgentId, BatchId, SiteId};

use crate::store::Error;
use crate::store::rows::{Rows, Statement};

/// Returns the stored constraints of a batch. If the batch has no task yet, first stores the
/// requested constraints. The caller has locked the batch.
pub async fn settle(conn: &mut PgConnection, batch: BatchId, asked: &ConstraintsRequest) -> Result<Constraints, Error> {
    let whole = asked.whole();
    if whole != Constraints::default() {
        sqlx::query!(
            r#"
            insert into batch_constraints (batch_id, constraints)
            select $1, $2::jsonb
            -- Every submission adds a task, so a batch without tasks is being created.
            where not exists (select from tasks where batch_id = $1)
            on conflict (batch_id) do nothing
            "#,
            batch.get(),
            Json(&whole) as _,
        )
        .run(conn)
        .await?;
    }
    Ok(of_batches(conn, &[batch]).await?.remove(&batch).unwrap_or_default())
}

pub async fn of_batches(conn: &mut PgConnection, batches: &[BatchId]) -> Result<HashMap<BatchId, Constraints>, Error> {
    let rows =
        sqlx::query!("select batch_id, constraints from batch_constraints where batch_id = any($1)", batches as _,)
            .all(conn)
            .await?;
    Ok(rows.into_iter().map(|row| (row.batch_id, row.constraints)).collect())
}

/// The properties that constraints can require, for each enrolled agent, connected or not.
pub async fn traits(conn: &mut PgConnection) -> Result<BTreeMap<AgentId, AgentTraits>, Error> {
    let rows = sqlx::query!("select id, country, carrier, tags from agents where removed_at is null").all(conn).await?;
    let traits = rows
        .into_iter()
        .map(|row| (row.id, AgentTraits { country: row.country, carrier: row.carrier, tags: row.tags }));
    Ok(traits.collect())
}

/// For each of these sites, returns the batches that wait for its confirmation. A site is absent if
/// any of these batches has no constraints.
pub async fn to_be_confirmed(
    conn: &mut PgConnection,
    sites: &[SiteId],
) -> Result<HashMap<SiteId, Vec<BatchId>>, Error> {
    let rows = sqlx::query!(
        r#"
        select h.site_id, array_agg(distinct h.batch_id) as "batches!"
        from task_holds h left join batch_constraints c on c.batch_id = h.batch_id
        where h.site_id = any($1) and h.cause = 'confirming'
        group by h.site_id
        having bool_and(c.batch_id is not null)
        "#,
        sites as _,
    )
    .all(conn)
    .await?;
    let batches = |raw: Vec<i64>| raw.into_iter().map(BatchId::new).collect();
    Ok(rows.into_iter().map(|row| (row.site_id, batches(row.batches))).collect())
}

/// Stores a batch's excluded agents as a new row, and returns the row's number. If the excluded
/// agents have not changed, returns the number of the newest row.
pub async fn remember(
    conn: &mut PgConnection,
    batch: BatchId,
    excluded: &BTreeMap<AgentId, Exclusion>,
) -> Result<i64, Error> {
    let (agents, causes): (Vec<i64>, Vec<String>) =
        excluded.iter().map(|(agent, exclusion)| (agent.get(), exclusion.to_string())).unzip();
    let known = sqlx::query_scalar!(
        r#"
        select newest.id from (
            select id, agents, causes from exclusions where batch_id = $1 order by id desc limit 1
        ) newest
        where newest.agents = $2 and newest.causes = $3
        "#,
        batch.get(),
        &agents,
        &causes,
    )
    .optional(conn)
    .await?;
    if let Some(known) = known {
        return Ok(known);
    }
    let made = sqlx::query_scalar!(
        "insert into exclusions (batch_id, agents, causes) values ($1, $2, $3) returning id",
        batch.get(),
        &agents,
        &causes,
    );
    made.one(conn).await
}
