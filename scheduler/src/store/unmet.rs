//! Unmet tasks: located tasks that nobody may crawl, and batches of which something waits at an agent.
//!
//! An unmet task is held until it is recalled. Why is said once, of its batch.

use sqlx::PgConnection;

use crate::model::{BatchId, TaskId};

use super::Error;
use super::holds::{self, Cause, Which};
use super::measurements::raw_sites;

/// Fails tasks that no agent may crawl. They are located, and locked by the caller.
pub async fn fail(conn: &mut PgConnection, tasks: &[TaskId], reason: &str) -> Result<(), Error> {
    let tasks: Vec<i64> = tasks.iter().map(|task| task.get()).collect();
    holds::end(conn, &tasks).await?;
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

/// Holds tasks that nobody may crawl now. They are located, and locked by the caller.
pub async fn hold(conn: &mut PgConnection, batch: BatchId, tasks: &[TaskId], reason: &str) -> Result<(), Error> {
    let unmet: Vec<(TaskId, Cause)> = tasks.iter().map(|task| (*task, Cause::Unmet)).collect();
    holds::hold(conn, &unmet).await?;
    explain(conn, batch, reason).await
}

/// Takes down why a batch's unmet tasks wait.
pub async fn explain(conn: &mut PgConnection, batch: BatchId, reason: &str) -> Result<(), Error> {
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
pub async fn batches(conn: &mut PgConnection) -> Result<Vec<BatchId>, Error> {
    let batches = sqlx::query_scalar!(
        r#"
        select c.batch_id from batch_constraints c
        where exists (select from task_holds h where h.batch_id = c.batch_id and h.cause = 'unmet')
        order by c.batch_id
        "#,
    )
    .fetch_all(conn)
    .await?;
    Ok(batches.into_iter().map(BatchId::new).collect())
}

/// Lets unmet tasks of a batch be chosen for again, or fails them with a reason; at most `limit`. Returns how many it was. Sites that nobody
/// was there to confirm are confirmed anew.
pub async fn recall(conn: &mut PgConnection, batch: BatchId, failure: Option<&str>, limit: i64) -> Result<u64, Error> {
    let (tasks, sites): (Vec<_>, Vec<_>) = holds::release(conn, Which::Unmet(batch), limit).await?.into_iter().unzip();
    if let Some(reason) = failure {
        fail(conn, &tasks, reason).await?;
    }
    sqlx::query!(
        r#"
        delete from confirmations r
        where r.site_id = any($1) and r.ended_at is not null and not exists (select from confirmers c where c.site_id = r.site_id)
        "#,
        &raw_sites(&sites),
    )
    .execute(conn)
    .await?;
    Ok(u64::try_from(tasks.len()).unwrap_or(u64::MAX))
}

/// Batches with constraints of which something is assigned and not begun.
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
