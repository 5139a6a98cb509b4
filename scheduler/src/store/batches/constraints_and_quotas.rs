//! Constraints and quotas of batches: the requirements for agents, the agents that were excluded,
//! and the bytes that each agent has fetched for a batch, summed by the hour.
//!
//! Invariant: constraints are stored with a batch's first submission and never change.
//! `crate::store::tasks::unmet_and_wait_causes` handles tasks that no agent may crawl.

use std::collections::{BTreeMap, HashMap};

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::model::constraints::{AgentTraits, Constraints, ConstraintsRequest, Exclusion};
use crate::model::quota_and_address_budget::QuotaUse;
use crate::model::{AgentId, BatchId, SiteId, TaskId};
use crate::store::rows_and_errors::{Rows, Statement};
use crate::store::types::{Unsigned, whole};
use crate::store::{Error, Locked, Tx};

/// Returns the stored constraints of a batch. If the batch has no task yet, first stores the
/// requested constraints.
pub async fn settle(tx: &mut Tx<'_>, batch: Locked<BatchId>, asked: &ConstraintsRequest) -> Result<Constraints, Error> {
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
        .run(tx)
        .await?;
    }
    Ok(of_batches(tx, &[*batch]).await?.remove(&batch).unwrap_or_default())
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

/// For each of these batches and each agent, returns the bytes fetched in the last 24 hours and the
/// number of assigned and leased tasks. For each batch, also returns the expected bytes of one
/// site: the mean over the sites fetched in the last 24 hours or, if there were none, the maximum
/// that the policy allows. Agents without a task or crawl of a batch are absent.
pub async fn spending(
    conn: &mut PgConnection,
    batches: &[BatchId],
) -> Result<(HashMap<(BatchId, AgentId), QuotaUse>, HashMap<BatchId, u64>), Error> {
    let fetched = sqlx::query!(
        r#"
        select batch_id, agent_id, least(sum(bytes), 9223372036854775807)::bigint as "bytes!: Unsigned<u64>", sum(crawls)::bigint as "crawls!: Unsigned<u64>"
        from quota_spending
        -- An hour counts until 24 hours after its end.
        where batch_id = any($1) and hour > now() - interval '25 hours'
        group by batch_id, agent_id
        "#,
        batches as _,
    )
    .all(conn)
    .await?;
    let under_way = sqlx::query!(
        r#"
        select t.batch_id as "batch_id!", t.agent_id as "agent_id!", count(*) as "tasks!: Unsigned<u32>"
        from tasks t where t.batch_id = any($1) and t.state = 'assigned' and t.agent_id is not null
        group by t.batch_id, t.agent_id
        union all
        select t.batch_id, l.agent_id, count(*)
        from leases l join tasks t on t.id = l.task_id
        where l.state = 'active' and t.batch_id = any($1)
        group by t.batch_id, l.agent_id
        "#,
        batches as _,
    )
    .all(conn)
    .await?;
    let most = sqlx::query!("select id, max_bytes from batches where id = any($1)", batches as _).all(conn).await?;
    let mut expected = HashMap::new();
    for row in most {
        let of_batch = fetched.iter().filter(|sum| sum.batch_id == row.id);
        let (bytes, crawls) = of_batch
            .fold((0_i128, 0_i128), |all, sum| (all.0 + i128::from(sum.bytes.0), all.1 + i128::from(sum.crawls.0)));
        let mean = bytes.checked_div(crawls).and_then(|mean| u64::try_from(mean).ok());
        expected.insert(row.id, mean.unwrap_or(row.max_bytes.0));
    }
    let mut spending: HashMap<(BatchId, AgentId), QuotaUse> = HashMap::new();
    for row in fetched {
        let one = spending.entry((row.batch_id, row.agent_id)).or_default();
        one.fetched = row.bytes.0;
    }
    for row in under_way {
        let one = spending.entry((BatchId::new(row.batch_id), AgentId::new(row.agent_id))).or_default();
        one.under_way = one.under_way.saturating_add(row.tasks.0);
    }
    for ((batch, _), one) in &mut spending {
        one.expected = expected.get(batch).copied().unwrap_or_default();
    }
    Ok((spending, expected))
}

/// Adds the bytes fetched by crawls of batches with a quota. The bytes are summed by the hour, so
/// that checking a quota reads few rows. The bytes of an hour count until 24 hours after the end of
/// the hour, so an agent never fetches more than its quota within 24 hours.
pub(in crate::store) async fn add_spending(
    tx: &mut Tx<'_>,
    fetched: &[(Locked<TaskId>, AgentId, u64)],
) -> Result<(), Error> {
    let tasks: Vec<i64> = fetched.iter().map(|(task, ..)| task.get()).collect();
    let agents: Vec<i64> = fetched.iter().map(|(_, agent, _)| agent.get()).collect();
    let bytes: Vec<i64> = fetched.iter().map(|(.., bytes)| whole(*bytes)).collect();
    sqlx::query!(
        r#"
        insert into quota_spending as spent (batch_id, agent_id, hour, bytes, crawls)
        select t.batch_id, crawl.agent_id, date_trunc('hour', now()),
               -- An agent may report any number, so the sum may not fit into a bigint.
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
    .run(tx)
    .await
}

/// Deletes hourly sums that are too old to matter for a quota.
pub async fn prune_spending(conn: &mut PgConnection) -> Result<u64, Error> {
    sqlx::query!("delete from quota_spending where hour <= now() - interval '25 hours'").affected(conn).await
}
