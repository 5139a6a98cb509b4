//! Reads rows, and defines the errors of the store: an invalid stored value, a full disk, and why
//! the schema cannot be migrated.
//!
//! An invalid stored value causes an error that names its table and column.
//!
//! sqlx's error contains only the column's index in the statement. The names of the table and
//! column are looked up from the description that Postgres sends with the rows.

use std::borrow::Cow;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::{Locked, Tx};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use sqlx::migrate::MigrateError;
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgColumn, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::query::{Map, Query, QueryScalar};
use sqlx::{
    Column, Decode, Describe, Either, Execute, Executor, IntoArguments, PgConnection, Postgres, Row, SqlStr, Type,
};

/// A statement that reads rows.
pub(super) trait Rows<O>: Sized {
    async fn all(self, conn: &mut PgConnection) -> Result<Vec<O>, Error>;
    /// The row of a statement that always returns exactly one row.
    async fn one(self, conn: &mut PgConnection) -> Result<O, Error>;
    /// The row; `None` if the statement returned no row.
    async fn optional(self, conn: &mut PgConnection) -> Result<Option<O>, Error>;

    /// The identifiers that the statement returns, of rows that the statement locks.
    async fn locked<C: FromIterator<Locked<O>>>(self, tx: &mut Tx<'_>) -> Result<C, Error>
    where
        O: Copy,
    {
        let rows = self.all(tx).await?;
        Ok(Locked::all(tx, rows))
    }
}

/// A statement that changes rows.
pub(super) trait Statement: Sized {
    /// Returns the number of changed rows.
    async fn affected(self, conn: &mut PgConnection) -> Result<u64, Error>;

    async fn run(self, conn: &mut PgConnection) -> Result<(), Error> {
        self.affected(conn).await?;
        Ok(())
    }
}

impl<'q, A: 'q + Send + IntoArguments<Postgres>> Statement for Query<'q, Postgres, A> {
    async fn affected(self, conn: &mut PgConnection) -> Result<u64, Error> {
        Ok(self.execute(conn).await?.rows_affected())
    }
}

macro_rules! rows {
    () => {
        async fn all(self, conn: &mut PgConnection) -> Result<Vec<O>, Error> {
            let columns = Columns::default();
            let read = self.fetch_all(WatchedConnection { conn, columns: &columns }).await;
            named(conn, read, columns).await
        }

        async fn one(self, conn: &mut PgConnection) -> Result<O, Error> {
            let columns = Columns::default();
            let read = self.fetch_one(WatchedConnection { conn, columns: &columns }).await;
            named(conn, read, columns).await
        }

        async fn optional(self, conn: &mut PgConnection) -> Result<Option<O>, Error> {
            let columns = Columns::default();
            let read = self.fetch_optional(WatchedConnection { conn, columns: &columns }).await;
            named(conn, read, columns).await
        }
    };
}

impl<'q, F, O, A> Rows<O> for Map<'q, Postgres, F, A>
where
    F: FnMut(PgRow) -> Result<O, sqlx::Error> + Send,
    O: Send + Unpin,
    A: 'q + Send + IntoArguments<Postgres>,
{
    rows!();
}

impl<'q, O, A> Rows<O> for QueryScalar<'q, Postgres, O, A>
where
    O: for<'r> Decode<'r, Postgres> + Type<Postgres> + Send + Unpin,
    A: 'q + Send + IntoArguments<Postgres>,
{
    rows!();
}

/// The columns of a statement. They are known only after the statement has returned a row.
#[derive(Debug, Default)]
struct Columns(Mutex<Vec<PgColumn>>);

impl Columns {
    fn note(&self, row: &PgRow) {
        let mut columns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if columns.is_empty() {
            columns.extend_from_slice(row.columns());
        }
    }
}

/// A connection that records the columns of its rows before they are decoded.
#[derive(Debug)]
struct WatchedConnection<'c> {
    conn: &'c mut PgConnection,
    columns: &'c Columns,
}

impl<'c> Executor<'c> for WatchedConnection<'c> {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let note = move |step: &Either<_, PgRow>| {
            if let Either::Right(row) = step {
                self.columns.note(row);
            }
        };
        self.conn.fetch_many(query).inspect_ok(note).boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(async move {
            let row = self.conn.fetch_optional(query).await?;
            if let Some(row) = &row {
                self.columns.note(row);
            }
            Ok(row)
        })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        self.conn.prepare_with(sql, parameters)
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, sqlx::Error>>
    where
        'c: 'e,
    {
        self.conn.describe(sql)
    }
}

/// Adds the names of the table and the column to the error for an invalid value.
async fn named<T>(conn: &mut PgConnection, read: Result<T, sqlx::Error>, columns: Columns) -> Result<T, Error> {
    let (index, source) = match read {
        Ok(read) => return Ok(read),
        Err(sqlx::Error::ColumnDecode { index, source }) => (index, source),
        Err(error) => return Err(error.into()),
    };
    let columns = columns.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    let column = index.parse().ok().and_then(|index: usize| columns.get(index));
    // An alias like `as "name!: Type"` also contains a type for sqlx's macros.
    let alias = column.map_or("", |column| column.name()).split(['!', '?', ':']).next().unwrap_or_default().to_owned();
    let of_table = column.and_then(|column| column.relation_id().zip(column.relation_attribute_no()));
    let stored = match of_table {
        Some((table, number)) => table_and_column(conn, table, number).await?,
        None => None,
    };
    let (table, column) = stored.unwrap_or_else(|| ("a statement".to_owned(), alias));
    Err(Error::inconsistent(table, column, &source))
}

async fn table_and_column(
    conn: &mut PgConnection,
    table: Oid,
    number: i16,
) -> Result<Option<(String, String)>, sqlx::Error> {
    let named = sqlx::query_as(
        "select c.relname::text, a.attname::text from pg_class c join pg_attribute a on a.attrelid = c.oid where c.oid = $1 and a.attnum = $2",
    );
    named.bind(table).bind(number).fetch_optional(conn).await
}

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
    Schema(#[from] MigrationObstacle),
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

    /// Whether Postgres refused a text because it contains a zero character, the only character
    /// that Postgres refuses.
    pub fn has_zero_character(&self) -> bool {
        const CHARACTER_NOT_IN_REPERTOIRE: &str = "22021";
        let Self::Database(sqlx::Error::Database(error)) = self else { return false };
        error.code().as_deref() == Some(CHARACTER_NOT_IN_REPERTOIRE)
    }

    /// Whether a statement waited too long for another transaction's lock, by `lock_timeout`, or by
    /// `statement_timeout`, which is longer than any statement takes that does not wait.
    pub fn is_locked(&self) -> bool {
        const LOCK_NOT_AVAILABLE: &str = "55P03";
        const QUERY_CANCELED: &str = "57014";
        let Self::Database(sqlx::Error::Database(error)) = self else { return false };
        matches!(error.code().as_deref(), Some(LOCK_NOT_AVAILABLE | QUERY_CANCELED))
    }

    /// Whether the database refused a change because it is read-only.
    pub fn is_read_only(&self) -> bool {
        let Self::Database(sqlx::Error::Database(error)) = self else { return false };
        error.code().as_deref() == Some(READ_ONLY)
    }

    /// Whether the same statement can succeed later.
    pub fn passes(&self) -> bool {
        match self {
            Self::Database(cause) => passes(cause),
            Self::DiskFull(_) => true,
            Self::Inconsistent { .. } | Self::Schema(_) | Self::NewerSchema(_) | Self::HalfRestored => false,
        }
    }
}

/// The classes of SQLSTATE after which a retry can succeed: the connection failed (08); the
/// transaction ended early, or the database is read-only (25); Postgres resolves a conflict (40),
/// is short of resources (53), starts, stops or was told to end the connection (57), or could not
/// read or write a file (58).
const PASSING: [&str; 6] = ["08", "25", "40", "53", "57", "58"];
const READ_ONLY: &str = "25006";

/// Whether a statement that failed with this error can succeed later.
fn passes(cause: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(error) = cause {
        return error.code().is_some_and(|code| PASSING.iter().any(|class| code.starts_with(class)));
    }
    matches!(
        cause,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
    )
}

/// The SQLSTATE of an error caused by a full disk.
pub(crate) const DISK_FULL: &str = "53100";

/// Where the database's disk is, as text for the error message "make room ...". Only the database
/// knows where its disk is, and the code that formats an error has no connection to the database.
/// So the text is stored in a global variable. A process uses only one database.
pub(super) static PLACE: OnceLock<String> = OnceLock::new();

fn is_disk_full(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| code == DISK_FULL)
}

fn place_of_disk() -> &'static str {
    PLACE.get().map_or("there", String::as_str)
}

/// Why the schema cannot be migrated.
#[derive(Debug, thiserror::Error)]
pub enum MigrationObstacle {
    #[error(
        "the role {role} may not create tables in the schema {schema} of the database {database}: let the database's owner run \
         `grant usage, create on schema {schema} to {role}`"
    )]
    NoCreate {
        /// The role's name, quoted for SQL.
        role: String,
        /// The schema's name, quoted for SQL.
        schema: String,
        database: String,
    },
    #[error(
        "the role {role} may not change the tables of the database {database} ({said}): connect as the role that owns them, or \
         give them away with `reassign owned by OWNER to {role}`"
    )]
    NotOwner {
        /// The role's name, quoted for SQL.
        role: String,
        database: String,
        said: String,
    },
    #[error(
        "the database {database} contains the tables of another program ({said}): give landfall a database of its own \
         (`createdb`)"
    )]
    Foreign {
        database: String,
        /// What was found in the database, as evidence.
        said: String,
    },
    /// The database's migrations differ from this program's but are not newer.
    #[error(
        "the database {database} was made by another build of landfall (its migration {version} is not this one's): export what you \
         need with that build (`landfall report assignments --batch NAME -o csv`), then start this one on an empty database or \
         another --data-dir"
    )]
    OtherBuild {
        database: String,
        /// The first migration that differs.
        version: i64,
    },
    #[error(
        "an upgrade of this database was interrupted in migration {0} and its state is unknown: restore the backup \
         from before the upgrade into an empty database"
    )]
    HalfDone(i64),
    #[error(
        "migration {version} does not fit the tables of this database ({said}), which were changed: undo the change, \
         or restore a backup into an empty database"
    )]
    Unfit { version: i64, said: String },
    #[error("the database {0} is read-only: name the primary server instead of a standby")]
    ReadOnly(String),
    /// Any other error, which the operator did not cause.
    #[error("migrate the schema")]
    Other(#[source] MigrateError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AgentId, Rtt};
    use crate::store::fixtures::{self, Conn};
    use crate::store::types::Unsigned;

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_value_out_of_range_is_named_by_its_table_and_column(mut conn: Conn) {
        let agent = fixtures::agent(&mut conn, "a").await;
        sqlx::raw_sql("alter table agents drop constraint agents_capacity_range; update agents set capacity = -3")
            .execute(&mut *conn)
            .await
            .expect("spoil");
        let slots = || sqlx::query!("select id, capacity as slots from agents where id = $1", agent.get());
        let error = slots().one(&mut conn).await.map(|row| (row.id, row.slots)).expect_err("it is negative");
        assert_eq!(error.to_string(), "inconsistent row: agents.capacity is -3");
        assert_eq!(slots().all(&mut conn).await.expect_err("it is").to_string(), error.to_string());
        assert_eq!(slots().optional(&mut conn).await.expect_err("it is").to_string(), error.to_string());

        let alone = sqlx::query_scalar!("select capacity from agents");
        assert_eq!(alone.one(&mut conn).await.expect_err("it is").to_string(), error.to_string());
        let sum = sqlx::query!(
            r#"select -5::bigint as "sum!: Unsigned<u64>", 0::bigint as "rtt!: Rtt", 1::bigint as "id!: AgentId""#
        );
        let error = sum.one(&mut conn).await.map(|row| (row.sum, row.rtt, row.id)).expect_err("it is negative");
        assert_eq!(error.to_string(), "inconsistent row: a statement.sum is -5");
    }
}
