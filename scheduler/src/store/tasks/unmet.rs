//! Unmet tasks: located tasks that no agent may crawl. This file also finds batches with tasks that
//! are assigned but not begun.
//!
//! An unmet task is held until it is released or fails. The reason is stored once per batch.

use std::collections::HashMap;

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::model::constraints::{Constraints, NoEligibleAgent};
use crate::model::{BatchId, TaskId};

use super::holds::{self, Cause, HoldFilter};
use crate::store::Error;
use crate::store::batches::constraints;
use crate::store::rows::{Rows, Statement};

/// Fails tasks that no agent may crawl. The tasks are located, and the caller has locked them.
pub async fn fail(conn: &mut PgConnection, tasks: &[TaskId], reason: &str) -> Result<(), Error> {
    holds::end(conn, tasks).await?;
    sqlx::query!(
        r#"
        update tasks set state = 'failed', reason = $2, reason_kind = 'no-agent', state_since = now()
        where id = any($1) and state::text = 'located'
        "#,
        tasks as _,
        reason,
    )
    .run(conn)
    .await
}

/// Holds tasks that no agent may crawl now. The tasks are located, and the caller has locked them.
pub async fn hold(
    conn: &mut PgConnection,
    batch: BatchId,
    tasks: &[TaskId],
    why: &NoEligibleAgent,
) -> Result<(), Error> {
    let unmet: Vec<(TaskId, Cause)> = tasks.iter().map(|task| (*task, Cause::Unmet)).collect();
    holds::hold(conn, &unmet).await?;
    explain(conn, batch, why).await
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
pub async fn why(
    conn: &mut PgConnection,
    batches: &[BatchId],
) -> Result<HashMap<BatchId, (Constraints, NoEligibleAgent)>, Error> {
    let mut asked = constraints::of_batches(conn, batches).await?;
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
pub async fn release(conn: &mut PgConnection, batch: BatchId, failure: Option<&str>, limit: i64) -> Result<u64, Error> {
    let (tasks, sites): (Vec<_>, Vec<_>) =
        holds::release(conn, HoldFilter::Unmet(batch), limit).await?.into_iter().unzip();
    if let Some(reason) = failure {
        fail(conn, &tasks, reason).await?;
    }
    sqlx::query!(
        r#"
        delete from confirmations r
        where r.site_id = any($1) and r.ended_at is not null and not exists (select from confirmers c where c.site_id = r.site_id)
        "#,
        &sites as _,
    )
    .run(conn)
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
