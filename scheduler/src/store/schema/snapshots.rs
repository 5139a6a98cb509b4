//! Snapshots: a consistent view of the whole database that other programs can use too. This file
//! also reads the properties that a backup and a restore check first.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::store::Error;
use crate::store::rows::Statement;

/// An exported snapshot, valid until the transaction that [`begin`] opened ends.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// The snapshot's name, for `pg_dump`.
    pub name: String,
    pub at: DateTime<Utc>,
    /// The database's newest migration.
    pub schema: i64,
    /// SHA-256 of the operator's token, hexadecimal; `None` before the first start.
    pub operator_token: Option<String>,
    /// SHA-256 of the certificate authority that agents trust, hexadecimal; `None` if all parts run
    /// on one machine.
    pub authority: Option<String>,
    pub sites: i64,
    /// Number of agents that have not been removed.
    pub agents: i64,
}

/// Begins a transaction that keeps one snapshot until the connection closes, and exports this
/// snapshot. The statements are not checked at compile time, so that they also work on the schema
/// of an earlier release.
pub async fn begin(conn: &mut PgConnection) -> Result<Snapshot, Error> {
    // The transaction is idle while other programs use the snapshot.
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

/// Properties that decide whether a database can be backed up, or be the target of a restore.
#[derive(Debug, Clone, sqlx::FromRow)]
pub struct DatabaseFacts {
    /// The server's major version.
    pub postgres: i32,
    /// The schema in which tables are created.
    pub schema: Option<String>,
    /// Whether the database contains Landfall's tables.
    pub ours: bool,
    /// Whether the database contains nothing except what extensions created.
    pub empty: bool,
}

/// Reads the facts, even from a database without Landfall's tables.
pub async fn look(conn: &mut PgConnection) -> Result<DatabaseFacts, Error> {
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

pub async fn analyze(conn: &mut PgConnection) -> Result<(), Error> {
    sqlx::query("analyze").run(conn).await
}
