//! Batches: submitted lists of sites. A batch's strategy and policy never change.

pub mod cancel_and_retry;
pub(crate) mod constraints;
pub(crate) mod end_reasons;
pub(crate) mod progress;
pub(crate) mod quotas;
pub(crate) mod removal;
pub(crate) mod submissions;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use sqlx::types::Json;

use crate::model::{BatchId, CrawlPolicy, Strategy};

use super::Error;
use super::rows::{Rows, Statement};
use super::types::Unsigned;
pub use progress::{Progress, progress, task_count};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    pub id: BatchId,
    pub name: String,
    pub strategy: Strategy,
    pub policy: CrawlPolicy,
    pub removing: bool,
}

pub async fn by_name(conn: &mut PgConnection, name: &str) -> Result<Option<Batch>, Error> {
    sqlx::query_as!(
        Batch,
        r#"
        select id, name, strategy, policy, removing_since is not null as "removing!"
        from batches where name = $1
        "#,
        name
    )
    .optional(conn)
    .await
}

/// Returns the batch of this name, creating it if it is new. Locks the batch against other
/// submissions until the transaction ends.
pub async fn lock_or_create(
    conn: &mut PgConnection,
    name: &str,
    strategy: Strategy,
    policy: &CrawlPolicy,
) -> Result<Batch, Error> {
    // `for update` would also block inserts of tasks; `for no key update` does not.
    sqlx::query!(
        "insert into batches (name, strategy, policy) values ($1, $2, $3) on conflict (name) do nothing",
        name,
        strategy.to_string(),
        Json(policy) as _,
    )
    .run(conn)
    .await?;
    sqlx::query_as!(
        Batch,
        r#"
        select id, name, strategy, policy, removing_since is not null as "removing!"
        from batches where name = $1
        for no key update
        "#,
        name,
    )
    .one(conn)
    .await
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::fixtures::{self, Conn};

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn the_policy_of_a_row_that_says_none_is_the_default(mut conn: Conn) {
        fixtures::execute(&mut conn, "insert into batches (name, strategy) values ('b', 'random')").await;
        let batch = by_name(&mut conn, "b").await.expect("read").expect("a batch");
        assert_eq!(batch.policy, CrawlPolicy::default());
    }
}
