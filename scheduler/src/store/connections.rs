//! Connections and transactions: how many connections a scheduler opens, the time-outs of
//! statements, and the ways to begin a transaction.

use std::pin::pin;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Postgres, Transaction};

use super::schema;
use crate::store::rows_and_errors::{Error, PLACE, Rows, Statement as _};
use crate::store::schema::backup_and_restore;

/// Maximum number of connections of one scheduler. With this maximum, two schedulers and other
/// programs, such as backups, together stay below Postgres' default limit of 100 connections.
const MAX_CONNECTIONS: u32 = 24;
/// Maximum time that a caller waits for a free connection.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeouts of statements and transactions, which Postgres enforces. Even a statement that inserts
/// ten thousand sites takes less than 60 s, so a statement that takes longer probably waits for a
/// lock that is never released. The timeout of idle transactions releases the locks of a scheduler
/// that hangs in the middle of a transaction.
const LIMITS: [(&str, &str); 2] = [("statement_timeout", "60s"), ("idle_in_transaction_session_timeout", "60s")];

/// Stores in `PLACE` where the database's disk is, as precisely as the database user's permissions
/// allow.
async fn find_place_of_disk(conn: &mut PgConnection, options: &PgConnectOptions) -> Result<(), Error> {
    let directory = sqlx::query_scalar!(
        r#"
        select case when pg_has_role(current_user, 'pg_read_all_settings', 'usage') then current_setting('data_directory') end
        "#,
    )
    .one(conn)
    .await?;
    let place = match (directory, options.get_socket()) {
        (Some(directory), Some(_)) => format!("at {directory}"),
        (Some(directory), None) => format!("at {directory} on {}", options.get_host()),
        (None, Some(_)) => "where this machine's Postgres has its data".to_owned(),
        (None, None) => format!("where the Postgres of {} has its data", options.get_host()),
    };
    // `PLACE` is already set if this process has opened the database before.
    drop(PLACE.set(place));
    Ok(())
}

/// Connects and applies migrations. Two schedulers may start at the same time, because the migrator
/// holds a lock.
pub async fn open(options: PgConnectOptions) -> Result<PgPool, Error> {
    // This connection has no timeouts, because a migration may take long, or wait for a migration
    // by another scheduler.
    let mut conn = options.connect().await?;
    if backup_and_restore::under_way(&mut conn).await? {
        return Err(Error::HalfRestored);
    }
    find_place_of_disk(&mut conn, &options).await?;
    schema::migrate(&mut conn).await?;
    conn.close().await?;
    let pool = PgPoolOptions::new()
        .max_connections(MAX_CONNECTIONS)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_with(options.options(LIMITS))
        .await?;
    Ok(pool)
}

pub async fn acquire(pool: &PgPool) -> Result<PoolConnection<Postgres>, Error> {
    Ok(pool.acquire().await?)
}

pub async fn commit(tx: Transaction<'_, Postgres>) -> Result<(), Error> {
    Ok(tx.commit().await?)
}

pub async fn begin(pool: &PgPool) -> Result<Transaction<'static, Postgres>, Error> {
    Ok(pool.begin().await?)
}

/// Interval of the statements that keep a transaction open. The shortest idle timeout is that of a
/// leader's transactions (5 s), five times this interval.
const KEEP_OPEN_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of statements that keep a transaction open. Because of this limit, work that
/// never ends does not hold the transaction's locks forever.
const MOST_KEPT_OPEN: u32 = 60;

/// Awaits `work`, which runs no statements, while a transaction is open. Sends a statement every
/// second, for at most a minute, so that Postgres does not abort the transaction as idle. A
/// suspended process sends no statement, so Postgres aborts its transaction.
pub async fn keep_open<T>(conn: &mut PgConnection, work: impl Future<Output = T>) -> Result<T, Error> {
    let mut work = pin!(work);
    for _ in 0..MOST_KEPT_OPEN {
        tokio::select! {
            done = &mut work => return Ok(done),
            () = tokio::time::sleep(KEEP_OPEN_INTERVAL) => sqlx::query("select 1").run(conn).await?,
        }
    }
    Ok(work.await)
}

/// Begins a read-only transaction in which all statements see one snapshot.
pub async fn begin_snapshot(pool: &PgPool) -> Result<Transaction<'static, Postgres>, Error> {
    Ok(pool.begin_with("begin transaction isolation level repeatable read, read only").await?)
}

/// Begins a transaction that fails (SQLSTATE class 55) after waiting `patience` for a lock.
pub async fn begin_impatient(pool: &PgPool, patience: Duration) -> Result<Transaction<'static, Postgres>, Error> {
    let mut tx = begin(pool).await?;
    let patience = format!("{}ms", patience.as_millis());
    sqlx::query_scalar!("select set_config('lock_timeout', $1, true)", patience).fetch_one(&mut *tx).await?;
    Ok(tx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_transaction_outlives_its_idle_limit_only_while_work_keeps_it_open(pool: PgPool) {
        let work = || tokio::time::sleep(Duration::from_secs(5));
        for kept_open in [true, false] {
            let mut tx = begin(&pool).await.expect("begin");
            sqlx::query("set local idle_in_transaction_session_timeout = '4s'").run(&mut tx).await.expect("set");
            if kept_open {
                keep_open(&mut tx, work()).await.expect("work");
            } else {
                work().await;
            }
            assert_eq!(commit(tx).await.is_ok(), kept_open);
        }
    }
}
