//! Reads rows. An invalid stored value causes an error that names its table and column.
//!
//! sqlx's error contains only the column's index in the statement. The names of the table and
//! column are looked up from the description that Postgres sends with the rows.

use std::sync::{Mutex, PoisonError};

use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use sqlx::postgres::types::Oid;
use sqlx::postgres::{PgColumn, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::query::{Map, Query, QueryScalar};
use sqlx::{
    Column, Decode, Describe, Either, Execute, Executor, IntoArguments, PgConnection, Postgres, Row, SqlStr, Type,
};

use super::Error;

/// A statement that reads rows.
pub(super) trait Rows<O>: Sized {
    async fn all(self, conn: &mut PgConnection) -> Result<Vec<O>, Error>;
    /// The row of a statement that always returns exactly one row.
    async fn one(self, conn: &mut PgConnection) -> Result<O, Error>;
    /// The row; `None` if the statement returned no row.
    async fn optional(self, conn: &mut PgConnection) -> Result<Option<O>, Error>;
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
