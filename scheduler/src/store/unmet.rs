//! Unmet tasks: located tasks that nobody may crawl, and tasks that wait at an agent which may not have them any more.
//!
//! An unmet task is parked, and told why. Its batch has the reason once; tasks learn a new one some at a time. Invariant: an unmet task is
//! `located` and not chosen for until it is recalled.

use sqlx::PgConnection;

use crate::model::{AgentId, BatchId, TaskId};

use super::Error;

/// Fails tasks that no agent may crawl. They are locked by the caller.
///
/// # Errors
/// When the database fails.
pub async fn fail(conn: &mut PgConnection, tasks: &[TaskId], reason: &str) -> Result<(), Error> {
    let tasks: Vec<i64> = tasks.iter().map(|task| task.get()).collect();
    sqlx::query!(
        r#"
        update tasks set state = 'failed', reason = $2, reason_kind = 'no-agent', state_since = now()
        where id = any($1) and state::text = 'located'
        "#,
        &tasks,
        reason,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Parks tasks that nobody may crawl now. They are locked by the caller.
///
/// # Errors
/// When the database fails.
pub async fn park(conn: &mut PgConnection, batch: BatchId, tasks: &[TaskId], reason: &str) -> Result<(), Error> {
    let tasks: Vec<i64> = tasks.iter().map(|task| task.get()).collect();
    sqlx::query!(
        r#"
        with unmet as (
            insert into unmet_tasks (task_id, batch_id) select id, $2 from unnest($1::bigint[]) as id
            on conflict (task_id) do update set told_at = now()
        ), over as (
            -- A place at their address is for those that may be crawled.
            delete from parkings where task_id = any($1)
        )
        update tasks set parked = true, reason = $3 where id = any($1) and state::text = 'located'
        "#,
        &tasks,
        batch.get(),
        reason,
    )
    .execute(&mut *conn)
    .await?;
    give_reason(conn, batch, reason).await
}

async fn give_reason(conn: &mut PgConnection, batch: BatchId, reason: &str) -> Result<(), Error> {
    sqlx::query!(
        "update batch_constraints set reason = $2, reason_since = now() where batch_id = $1 and reason is distinct from $2",
        batch.get(),
        reason,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Batches that have unmet tasks.
///
/// # Errors
/// When the database fails.
pub async fn batches(conn: &mut PgConnection) -> Result<Vec<BatchId>, Error> {
    let batches = sqlx::query_scalar!(
        r#"
        select c.batch_id from batch_constraints c
        where exists (select from unmet_tasks u where u.batch_id = c.batch_id)
        order by c.batch_id
        "#,
    )
    .fetch_all(conn)
    .await?;
    Ok(batches.into_iter().map(BatchId::new).collect())
}

/// Takes a new reason down, and tells it to tasks that wait for another, at most `limit`.
///
/// # Errors
/// When the database fails.
pub async fn explain(conn: &mut PgConnection, batch: BatchId, reason: &str, limit: i64) -> Result<(), Error> {
    give_reason(conn, batch, reason).await?;
    sqlx::query!(
        r#"
        with untold as (
            select u.task_id from unmet_tasks u join batch_constraints c on c.batch_id = u.batch_id
            where u.batch_id = $1 and u.told_at < c.reason_since
            order by u.told_at limit $3
        ), held as (
            select t.id, t.state = 'located' as located from tasks t where t.id in (select task_id from untold) order by t.id for update skip locked
        ), told as (
            update unmet_tasks u set told_at = now() from held where u.task_id = held.id
        )
        update tasks t set reason = $2 from held where t.id = held.id and held.located and t.parked
        "#,
        batch.get(),
        reason,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(())
}

/// Lets unmet tasks of a batch be chosen for again, or fails them with a reason; at most `limit`. Returns how many it was. Sites that nobody
/// was there to confirm are confirmed anew.
///
/// # Errors
/// When the database fails.
pub async fn recall(conn: &mut PgConnection, batch: BatchId, failure: Option<&str>, limit: i64) -> Result<u64, Error> {
    let sites = sqlx::query_scalar!(
        r#"
        with next as (
            select task_id from unmet_tasks where batch_id = $1 order by told_at limit $3
        ), held as (
            select t.id, t.state = 'located' as located from tasks t where t.id in (select task_id from next) order by t.id for update skip locked
        ), over as (
            delete from unmet_tasks u using held where u.task_id = held.id
        )
        update tasks t
        set parked = false, reason = $2, state = case when $2::text is null then t.state else 'failed' end,
            reason_kind = case when $2::text is not null then 'no-agent'::reason_kind end,
            state_since = case when $2::text is null then t.state_since else now() end
        from held where t.id = held.id and held.located
        returning t.site_id
        "#,
        batch.get(),
        failure,
        limit,
    )
    .fetch_all(&mut *conn)
    .await?;
    sqlx::query!(
        r#"
        delete from confirmations r
        where r.site_id = any($1) and r.ended_at is not null and not exists (select from confirmers c where c.site_id = r.site_id)
        "#,
        &sites,
    )
    .execute(conn)
    .await?;
    Ok(u64::try_from(sites.len()).unwrap_or(u64::MAX))
}

/// Batches with constraints of which something is assigned and not begun.
///
/// # Errors
/// When the database fails.
pub async fn assigned(conn: &mut PgConnection) -> Result<Vec<BatchId>, Error> {
    let batches = sqlx::query_scalar!(
        r#"
        select c.batch_id from batch_constraints c
        where exists (select from tasks t where t.batch_id = c.batch_id and t.state = 'assigned')
        order by c.batch_id
        "#,
    )
    .fetch_all(conn)
    .await?;
    Ok(batches.into_iter().map(BatchId::new).collect())
}

/// Takes what waits from agents that may not have it any more, at most `limit` tasks; returns how many.
///
/// # Errors
/// When the database fails.
pub async fn withdraw(conn: &mut PgConnection, from: &[(BatchId, AgentId)], limit: i64) -> Result<u64, Error> {
    let (batches, agents): (Vec<i64>, Vec<i64>) = from.iter().map(|(batch, agent)| (batch.get(), agent.get())).unzip();
    let withdrawn = sqlx::query!(
        r#"
        with waiting as (
            select t.id from unnest($1::bigint[], $2::bigint[]) as not_for (batch_id, agent_id)
            cross join lateral (
                select id from tasks
                where tasks.batch_id = not_for.batch_id and tasks.agent_id = not_for.agent_id and tasks.state = 'assigned'
                limit $3
                for update skip locked
            ) t
            limit $3
        )
        -- What kept the site from being measured is true for the next choice as well.
        update tasks t set state = 'located', reason = a.fallback_reason, state_since = now()
        from waiting w, assignments a
        where t.id = w.id and a.id = t.assignment_id
        "#,
        &batches,
        &agents,
        limit,
    )
    .execute(conn)
    .await?;
    Ok(withdrawn.rows_affected())
}

/// Forgets unmet tasks that have ended; returns how many.
///
/// # Errors
/// When the database fails.
pub async fn prune(conn: &mut PgConnection) -> Result<u64, Error> {
    let pruned =
        sqlx::query!("delete from unmet_tasks u using tasks t where t.id = u.task_id and t.state <> 'located'")
            .execute(conn)
            .await?;
    Ok(pruned.rows_affected())
}
