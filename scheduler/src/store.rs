//! The store: the only module that contains SQL.
//!
//! Each kind of entity (agents, tasks, leases, ...) has its own file. All functions take `&mut
//! PgConnection`, so callers decide what is in one transaction. Only Postgres' `now()` decides
//! whether something has expired. A row with an invalid value causes a typed error, never a panic.
//!
//! Task states change faster than Postgres updates its statistics. If the statistics show no rows
//! in a state, the planner expects the index on states to return almost nothing. It then prefers
//! this index to the index on keys or sites, and the statement may read all tasks in that state. To
//! prevent this, statements that find tasks by key or by site compare `state::text`, which no index
//! contains, or test the state in an earlier step (a separate statement or an `offset 0` subquery).

pub mod agents;
pub(crate) mod assignments;
pub mod batches;
pub(crate) mod embeddings;
mod enums;
pub(crate) mod leases;
pub(crate) mod measurements;
pub(crate) mod names;
pub(crate) mod reports;
mod rows;
pub(crate) mod schedulers;
pub(crate) mod schema;
pub mod settings;
pub mod sites;
pub(crate) mod tasks;
pub(crate) mod types;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod interleavings;

use std::borrow::Cow;
use std::pin::pin;
use std::sync::OnceLock;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Postgres, Transaction};

use crate::gnp::Position;

use rows::{Rows, Statement as _};

/// The embedded migrations. A migration cannot be undone.
pub static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("../migrations");

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

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database is unreachable, or a statement failed.
    #[error("query the database")]
    Database(#[source] sqlx::Error),
    #[error("the database's disk is full: make room {}", place_of_disk())]
    DiskFull(#[source] sqlx::Error),
    #[error("inconsistent row: {table}.{column} is {value}")]
    Inconsistent { table: Cow<'static, str>, column: Cow<'static, str>, value: String },
    #[error(transparent)]
    Schema(#[from] schema::MigrationObstacle),
    #[error("the database's schema is newer than this program (it has migration {0}): run the newer landfall")]
    NewerSchema(i64),
    #[error(
        "a restore into this database has not ended: when it no longer runs, empty the database (or remove the data \
         directory) and restore again"
    )]
    HalfRestored,
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match error {
            full if is_disk_full(&full) => Self::DiskFull(full),
            sqlx::Error::ColumnDecode { index, source } => Self::inconsistent("a statement", index, &source),
            other => Self::Database(other),
        }
    }
}

impl Error {
    pub fn inconsistent(
        table: impl Into<Cow<'static, str>>,
        column: impl Into<Cow<'static, str>>,
        value: &(impl ToString + ?Sized),
    ) -> Self {
        Self::Inconsistent { table: table.into(), column: column.into(), value: value.to_string() }
    }
}

/// The SQLSTATE of an error caused by a full disk.
pub(crate) const DISK_FULL: &str = "53100";

/// Where the database's disk is, as text for the error message "make room ...". Only the database
/// knows this, and the code that formats an error has no connection to the database. So the text is
/// stored globally. A process uses only one database.
static PLACE: OnceLock<String> = OnceLock::new();

fn is_disk_full(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| code == DISK_FULL)
}

fn place_of_disk() -> &'static str {
    PLACE.get().map_or("there", String::as_str)
}

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
    // `PLACE` is already set if this process opens the database for the second time.
    drop(PLACE.set(place));
    Ok(())
}

/// Connects and applies migrations. Two schedulers may start at the same time, because the migrator
/// holds a lock.
pub async fn open(options: PgConnectOptions) -> Result<PgPool, Error> {
    // This connection has no timeouts, because a migration may take long, or wait for a migration
    // by another scheduler.
    let mut conn = options.connect().await?;
    if schema::restores::under_way(&mut conn).await? {
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

/// Formats a time for messages, to the minute.
pub(crate) fn minute(at: &DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M UTC").to_string()
}

fn position(table: &'static str, latitude: Option<f64>, longitude: Option<f64>) -> Result<Option<Position>, Error> {
    Position::from_parts(latitude, longitude)
        .map_err(|_| Error::inconsistent(table, "latitude, longitude", &format!("{latitude:?}, {longitude:?}")))
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
