//! Tasks are locked before their outcomes are judged and recorded.

use std::collections::HashMap;

use sqlx::PgConnection;

use super::outcome_report::OutcomeReport;
use crate::model::{AgentId, LeaseToken, SiteId, TaskId};
use crate::store::Error;
use crate::store::rows::Rows;

/// A task whose row is locked until the transaction ends.
pub(super) struct LockedTask {
    pub(super) site: SiteId,
    pub(super) token: LeaseToken,
    pub(super) open: bool,
    /// Whether the task's batch has a quota.
    pub(super) limited: bool,
    pub(super) round: u32,
}

/// Locks the tasks' rows in the order of their identifiers, like every transaction that ends
/// leases.
pub(super) async fn lock(
    conn: &mut PgConnection,
    reports: &[(AgentId, &OutcomeReport)],
) -> Result<HashMap<TaskId, LockedTask>, Error> {
    let ids: Vec<i64> = reports.iter().map(|(_, report)| report.task.get()).collect();
    let rows = sqlx::query!(
        r#"
        select id, site_id, round, token, state in ('assigned', 'leased', 'located') as "open!",
               batch_id in (select c.batch_id from batch_constraints c where c.constraints ->> 'bytes_per_day' is not null) as "limited!"
        from tasks where id = any($1)
        order by id
        for update
        "#,
        &ids,
    )
    .all(conn)
    .await?;
    let locked = rows.into_iter().map(|row| {
        let (site, token) = (row.site_id, row.token);
        (row.id, LockedTask { site, token, open: row.open, limited: row.limited, round: row.round.0 })
    });
    Ok(locked.collect())
}
