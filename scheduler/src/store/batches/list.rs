//! Lists batches with the numbers of their tasks, newest first.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::model::Strategy;
use crate::store::Error;
use crate::store::rows::Rows;
use crate::store::types::Unsigned;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchSummary {
    pub name: String,
    pub strategy: Strategy,
    /// Time of the first submission.
    pub created_at: DateTime<Utc>,
    /// Number of tasks that have not ended.
    pub open: u64,
    pub done: u64,
    pub failed: u64,
    pub cancelled: u64,
}

/// Selects batches. A field that is `None` sets no condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatchFilter {
    /// Whether the batch has tasks that have not ended.
    pub open: Option<bool>,
    /// The batch was first submitted at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// The batch was first submitted before this time.
    pub until: Option<DateTime<Utc>>,
}

/// At most `limit` of the selected batches, newest first, and the number of all selected batches.
pub async fn list(
    conn: &mut PgConnection,
    filter: BatchFilter,
    limit: Option<i64>,
) -> Result<(Vec<BatchSummary>, u64), Error> {
    let rows = sqlx::query!(
        r#"
        select b.name as "name!", b.strategy as "strategy!", b.created_at as "created_at!",
               count(*) over () as "all!: Unsigned<u64>",
               p.submitted + p.measuring + p.located + p.assigned + p.leased as "open!: Unsigned<u64>",
               p.done as "done!: Unsigned<u64>", p.failed as "failed!: Unsigned<u64>",
               p.cancelled as "cancelled!: Unsigned<u64>"
        from batches b
        join batch_progress p on p.batch_id = b.id
        where ($2::boolean is null or $2 = (p.submitted + p.measuring + p.located + p.assigned + p.leased > 0))
          and ($3::timestamptz is null or b.created_at >= $3)
          and ($4::timestamptz is null or b.created_at < $4)
        order by b.id desc
        limit $1::bigint
        "#,
        limit,
        filter.open,
        filter.since,
        filter.until,
    )
    .all(conn)
    .await?;
    let all = rows.first().map_or(0, |row| row.all.0);
    let listed = rows.into_iter().map(|row| BatchSummary {
        name: row.name,
        strategy: row.strategy,
        created_at: row.created_at,
        open: row.open.0,
        done: row.done.0,
        failed: row.failed.0,
        cancelled: row.cancelled.0,
    });
    Ok((listed.collect(), all))
}
