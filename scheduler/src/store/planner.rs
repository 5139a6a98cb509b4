//! What Postgres' planner has to be told: that tables grow by more than its statistics know.
//!
//! A plan is made from the statistics of the last `analyze` and may be kept by its connection, that of a foreign key's check too: one
//! made for a table of a single page reads all of it for every row, even after a hundred thousand have come.
//!
//! States move faster still. A statement that finds tasks by their key, or by their site, looks at a state as `state::text`, or in
//! a step before: by an index over states, of which the statistics say that nothing is in one, it would read all that is.

use sqlx::PgConnection;

use super::Error;
use super::rows::{Rows, Statement};
use super::types::whole;

/// Rows that are never worth statistics of their own.
const FEW: u64 = 1_000;

/// Until the transaction ends plans are made anew, and by index: tables are about to grow under them.
pub async fn expect_growth(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!("discard plans").run(conn).await?;
    sqlx::query!("select set_config('enable_seqscan', 'off', true) as scan, set_config('jit', 'off', true) as jit")
        .one(conn)
        .await?;
    Ok(())
}

/// Until the transaction ends rows in an order are read by the index that has it, as far as they are asked for: who pages through many
/// would else have all of them sorted for every page, wherever the planner thinks that there are few.
pub async fn expect_order(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query!("select set_config('enable_sort', 'off', true) as sort, set_config('jit', 'off', true) as jit")
        .one(conn)
        .await?;
    Ok(())
}

/// Counts sites and tasks anew for the planner after so many tasks were added, where that is a tenth of them: once the transaction is
/// committed every connection plans for what there is. Somebody else who counts at this moment is enough.
pub async fn has_grown(conn: &mut PgConnection, added: u64) -> Result<(), Error> {
    if added < FEW {
        return Ok(());
    }
    let added: i64 = whole(added);
    let much = sqlx::query_scalar!(
        r#"select $1::bigint > reltuples / 10 as "much!" from pg_class where oid = 'tasks'::regclass"#,
        added
    )
    .one(conn)
    .await?;
    if much {
        sqlx::query!("analyze (skip_locked) sites, tasks").run(conn).await?;
    }
    Ok(())
}
