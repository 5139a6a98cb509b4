//! Snapshots: one moment of the whole database, which other programs may read as well, and what has to be known of it for a backup
//! and before a restore.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::Error;
use crate::store::rows::Statement;

/// A moment of a database, for as long as its transaction lasts.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// How `pg_dump` is told of it.
    pub name: String,
    pub at: DateTime<Utc>,
    pub schema: i64,
    /// SHA-256 of the operator's token, hexadecimal; none before the first start.
    pub operator_token: Option<String>,
    /// SHA-256 of the authority that agents trust, hexadecimal; none where all are on one machine.
    pub authority: Option<String>,
    pub sites: i64,
    /// Agents that were not removed.
    pub agents: i64,
}

/// Begins a transaction that sees one moment until the connection is closed, and lets others see it. Plain statements: a schema of
/// a former release is described as well.
pub async fn begin(conn: &mut PgConnection) -> Result<Snapshot, Error> {
    // It stands still in its transaction while others read.
    sqlx::query("set idle_in_transaction_session_timeout = 0").run(conn).await?;
    sqlx::query("begin transaction isolation level repeatable read, read only").run(conn).await?;
    type Row = (String, DateTime<Utc>, i64, Option<String>, Option<String>, i64, i64);
    let row: Row = sqlx::query_as(
        "select pg_export_snapshot(), now(), (select max(version) from _sqlx_migrations where success),
                encode(operator_token_hash, 'hex'), ca_fingerprint,
                (select count(*) from sites), (select count(*) from agents where removed_at is null)
         from settings",
    )
    .fetch_one(&mut *conn)
    .await?;
    let (name, at, schema, operator_token, authority, sites, agents) = row;
    Ok(Snapshot { name, at, schema, operator_token, authority, sites, agents })
}

/// What of a database decides whether a backup can be taken from it, or restored into it.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct Place {
    pub postgres: i32,
    /// Where tables are made.
    pub schema: Option<String>,
    /// Whether it holds Landfall's tables.
    pub ours: bool,
    /// Whether it holds nothing but what extensions brought.
    pub empty: bool,
}

/// Looks at a database, whatever it holds.
pub async fn look(conn: &mut PgConnection) -> Result<Place, Error> {
    let place = sqlx::query_as(
        "select current_setting('server_version_num')::integer / 10000 as postgres, current_schema()::text as schema,
                to_regclass('_sqlx_migrations') is not null and to_regclass('settings') is not null as ours,
                not exists (
                    select from pg_class c join pg_namespace n on n.oid = c.relnamespace
                    where n.nspname <> 'information_schema' and n.nspname !~ '^pg_'
                      and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'e')
                ) as empty",
    )
    .fetch_one(&mut *conn)
    .await?;
    Ok(place)
}

/// Tells the planner what the tables hold.
pub async fn analyze(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query("analyze").run(conn).await
}
