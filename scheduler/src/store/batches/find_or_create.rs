//! Finds a batch by its name, and creates it at its first submission. Its strategy and policy never
//! change.

use sqlx::PgConnection;
use sqlx::types::Json;

use crate::model::{BatchId, CrawlPolicy, Strategy};
use crate::store::Error;
use crate::store::rows::{Rows, Statement};

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
