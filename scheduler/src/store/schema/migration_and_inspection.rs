//! Migrates the schema when a scheduler starts, decides why it cannot be migrated, and compares a
//! database with what a scheduler needs.
//!
//! The inspection changes nothing, and takes no locks.

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use sqlx::migrate::MigrateError;
use sqlx::postgres::PgDatabaseError;

use crate::store::rows_and_errors::{MigrationObstacle, Rows, Statement};
use crate::store::schema::backup_and_restore;
use crate::store::schema::histories::tables;
use crate::store::{Error, MIGRATOR};

pub async fn migrate(conn: &mut PgConnection) -> Result<(), Error> {
    let Err(error) = MIGRATOR.run(&mut *conn).await else { return Ok(()) };
    if let MigrateError::Dirty(version) = error {
        return Err(MigrationObstacle::HalfDone(version).into());
    }
    let (said, version) = match error {
        MigrateError::Execute(error) => (error, None),
        MigrateError::ExecuteMigration(error, version) => (error, Some(version)),
        MigrateError::VersionMissing(version) | MigrateError::VersionMismatch(version) => {
            return Err(unknown_migration(conn, version).await?);
        }
        other => return Err(MigrationObstacle::Other(other).into()),
    };
    let Some(postgres) = said.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>()) else {
        return Err(said.into());
    };
    match obstacle(conn, postgres, version).await? {
        Some(obstacle) => Err(obstacle.into()),
        None => Err(said.into()),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub struct ServerFacts {
    /// The major version.
    pub major: i32,
    /// Whether the server accepts no changes, for example because it is a standby.
    pub read_only: bool,
    pub now: DateTime<Utc>,
}

/// Reads the server's facts. Afterwards the connection accepts no statement that changes data.
pub async fn server(conn: &mut PgConnection) -> Result<ServerFacts, Error> {
    let facts = sqlx::query_as(
        "select current_setting('server_version_num')::integer / 10000 as major,
                current_setting('transaction_read_only')::boolean as read_only, clock_timestamp() as now",
    )
    .fetch_one(&mut *conn)
    .await?;
    sqlx::query("set default_transaction_read_only = on").run(conn).await?;
    Ok(facts)
}

/// How a database's schema differs from this program's schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchemaState {
    /// There are no tables; a starting scheduler creates them.
    Empty,
    /// There are tables of another program, and none of them has the name of a Landfall table. A
    /// starting scheduler creates Landfall's tables beside them.
    Shared {
        /// One of the other program's tables.
        table: String,
    },
    /// A starting scheduler would apply this number of migrations.
    Older { missing: usize },
    /// The schema is equal to this program's.
    Current,
}

/// Compares the database's schema with this program's.
///
/// # Errors
/// The reason why a scheduler could not start on this database.
pub async fn schema(conn: &mut PgConnection, server: &ServerFacts) -> Result<SchemaState, Error> {
    if backup_and_restore::under_way(conn).await? {
        return Err(Error::HalfRestored);
    }
    let DatabaseRole { role, database, schema, creates } = place(conn).await?;
    let state = match migrations(conn).await? {
        Some(known) => compared(conn, &known).await?,
        None => without_migrations(conn, &database).await?,
    };
    if server.read_only {
        return Err(MigrationObstacle::ReadOnly(database).into());
    }
    if state == SchemaState::Current {
        return match writes(conn).await? {
            true => Ok(state),
            false => {
                let said = "it may not write the table settings".to_owned();
                Err(MigrationObstacle::NotOwner { role, database, said }.into())
            }
        };
    }
    if !creates {
        return Err(MigrationObstacle::NoCreate { role, schema, database }.into());
    }
    if matches!(state, SchemaState::Older { .. }) && !owns(conn).await? {
        let said = "another role owns its table of migrations".to_owned();
        return Err(MigrationObstacle::NotOwner { role, database, said }.into());
    }
    Ok(state)
}

/// One migration in a database: its number, whether it was completed, and the hash of its text.
type AppliedMigration = (i64, bool, Vec<u8>);

/// The migrations that were applied to a database; `None` if it has no table of migrations.
async fn migrations(conn: &mut PgConnection) -> Result<Option<Vec<AppliedMigration>>, Error> {
    let known: bool = sqlx::query_scalar("select to_regclass('_sqlx_migrations') is not null").one(conn).await?;
    if !known {
        return Ok(None);
    }
    let read = sqlx::query_as("select version, success, checksum from _sqlx_migrations order by version");
    let said = match read.fetch_all(&mut *conn).await {
        Ok(applied) => return Ok(Some(applied)),
        Err(said) => said,
    };
    let Some(postgres) = said.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>()) else {
        return Err(said.into());
    };
    match obstacle(conn, postgres, None).await? {
        Some(obstacle) => Err(obstacle.into()),
        None => Err(said.into()),
    }
}

async fn compared(conn: &mut PgConnection, applied: &[AppliedMigration]) -> Result<SchemaState, Error> {
    if let Some((version, ..)) = applied.iter().find(|(_, ended, _)| !ended) {
        return Err(MigrationObstacle::HalfDone(*version).into());
    }
    for (version, _, checksum) in applied {
        let ours = MIGRATOR.iter().find(|migration| migration.version == *version);
        if ours.is_none_or(|ours| *ours.checksum != **checksum) {
            return Err(unknown_migration(conn, *version).await?);
        }
    }
    Ok(match MIGRATOR.iter().count().saturating_sub(applied.len()) {
        0 => SchemaState::Current,
        missing => SchemaState::Older { missing },
    })
}

async fn without_migrations(conn: &mut PgConnection, database: &str) -> Result<SchemaState, Error> {
    let query = "select c.relname::text from pg_class c
                 where c.relnamespace = current_schema()::regnamespace and c.relkind in ('r', 'p')
                   and not exists (select from pg_depend d where d.objid = c.oid and d.deptype = 'e')
                 order by c.relname = any($1) desc, c.relname";
    let ours = tables();
    let first: Option<String> = sqlx::query_scalar(query).bind(&ours).optional(conn).await?;
    match first {
        None => Ok(SchemaState::Empty),
        Some(table) if ours.contains(&table.as_str()) => {
            let said = format!("it has a table {table}, but no table of migrations");
            Err(MigrationObstacle::Foreign { database: database.to_owned(), said }.into())
        }
        Some(table) => Ok(SchemaState::Shared { table }),
    }
}

async fn writes(conn: &mut PgConnection) -> Result<bool, Error> {
    sqlx::query_scalar("select has_table_privilege('settings', 'update')").one(conn).await
}

async fn owns(conn: &mut PgConnection) -> Result<bool, Error> {
    let query = "select pg_has_role(relowner, 'usage') from pg_class where oid = to_regclass('_sqlx_migrations')";
    sqlx::query_scalar(query).one(conn).await
}

/// The database role of this connection, with its database and schema.
struct DatabaseRole {
    role: String,
    database: String,
    schema: String,
    creates: bool,
}

async fn place(conn: &mut PgConnection) -> Result<DatabaseRole, Error> {
    sqlx::query_as!(
        DatabaseRole,
        r#"
        select quote_ident(current_user) as "role!", current_database()::text as "database!",
               quote_ident(coalesce(current_schema()::text, 'public')) as "schema!",
               coalesce(has_schema_privilege(current_schema(), 'create'), false) as "creates!"
        "#
    )
    .one(conn)
    .await
}

/// Determines the obstacle from Postgres' error; `None` if the error is not about the schema (for
/// example, a full disk).
async fn obstacle(
    conn: &mut PgConnection,
    refusal: &PgDatabaseError,
    version: Option<i64>,
) -> Result<Option<MigrationObstacle>, Error> {
    let said = refusal.message().to_owned();
    let first = MIGRATOR.iter().map(|migration| migration.version).min();
    let DatabaseRole { role, database, schema, creates } = match refusal.code() {
        // After an error of another class the connection may be broken, so nothing is read from the
        // database.
        code if ["25", "3F", "42"].iter().any(|class| code.starts_with(class)) => place(conn).await?,
        _ => return Ok(None),
    };
    Ok(match (refusal.code(), version) {
        ("25006", _) => Some(MigrationObstacle::ReadOnly(database)),
        ("42501" | "3F000", _) if !creates => Some(MigrationObstacle::NoCreate { role, schema, database }),
        ("42501", _) => Some(MigrationObstacle::NotOwner { role, database, said }),
        // Tables existed before Landfall's first migration, or the table of migrations was not made
        // by sqlx.
        (_, version) if version.is_none() || version == first => Some(MigrationObstacle::Foreign { database, said }),
        (_, Some(version)) => Some(MigrationObstacle::Unfit { version, said }),
        (_, None) => None,
    })
}

/// Builds the error for a database with a migration that this program does not have, or has with
/// other content.
pub async fn unknown_migration(conn: &mut PgConnection, version: i64) -> Result<Error, Error> {
    let database = place(conn).await?.database;
    // This query is not checked at compile time, because the table may be missing or belong to
    // another program.
    let ours: bool = sqlx::query_scalar(
        "select exists (
             select from pg_attribute where attrelid = to_regclass('settings') and attname = 'operator_token_hash'
         )",
    )
    .one(conn)
    .await?;
    if !ours {
        return Ok(MigrationObstacle::Foreign { database, said: format!("it has their migration {version}") }.into());
    }
    let newer = version > newest() && version < NUMBERED_BY_TIME;
    Ok(if newer { Error::NewerSchema(version) } else { MigrationObstacle::OtherBuild { database, version }.into() })
}

/// The lowest migration number of builds before the first release, which numbered their migrations
/// by time. The migration numbers of releases start at 1.
pub const NUMBERED_BY_TIME: i64 = 10_000_000_000_000;

/// The number of the newest migration in this program.
pub fn newest() -> i64 {
    MIGRATOR.iter().map(|migration| migration.version).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use sqlx::{AssertSqlSafe, Executor, PgPool};

    use super::*;
    use crate::store::schema::NUMBERED_BY_TIME;

    async fn inspected(pool: &PgPool) -> Result<SchemaState, String> {
        let mut conn = pool.acquire().await.unwrap().detach();
        let server = server(&mut conn).await.unwrap();
        assert!(server.major >= 13 && !server.read_only, "{server:?}");
        let state = schema(&mut conn, &server).await;
        let refused = sqlx::query("create table made ()").run(&mut conn).await;
        assert!(refused.is_err(), "after an inspection the connection is read-only");
        state.map_err(|error| error.to_string())
    }

    #[sqlx::test(migrations = false)]
    async fn tables_of_others_are_told_apart_from_none_and_from_those_in_the_way(pool: PgPool) {
        // The database of a test may be a copy that already has the schema.
        pool.execute("drop schema public cascade; create schema public").await.unwrap();
        assert_eq!(inspected(&pool).await, Ok(SchemaState::Empty));
        pool.execute("create table wp_posts (title text)").await.unwrap();
        assert_eq!(inspected(&pool).await, Ok(SchemaState::Shared { table: "wp_posts".to_owned() }));
        pool.execute("create table agents (name text)").await.unwrap();
        let said = inspected(&pool).await.unwrap_err();
        assert!(said.contains("contains the tables of another program (it has a table agents,"), "{said}");
        pool.execute("create table _sqlx_migrations (version text)").await.unwrap();
        let said = inspected(&pool).await.unwrap_err();
        assert!(said.contains("contains the tables of another program (column \"success\""), "{said}");
        let ours = tables();
        assert!(ours.contains(&"settings") && ours.contains(&"tasks"), "{ours:?}");
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_schema_is_this_programs_or_older_or_newer_or_of_another_build(pool: PgPool) {
        let change = async |sql: String| {
            pool.execute(AssertSqlSafe(sql)).await.unwrap();
        };
        let newest = crate::store::schema::newest();
        assert_eq!(inspected(&pool).await, Ok(SchemaState::Current));
        change("create table restore_under_way ()".to_owned()).await;
        assert!(inspected(&pool).await.unwrap_err().starts_with("a restore into this database has not ended"));
        change("drop table restore_under_way".to_owned()).await;

        change(format!("update _sqlx_migrations set success = false where version = {newest}")).await;
        let said = inspected(&pool).await.unwrap_err();
        assert!(said.contains(&format!("interrupted in migration {newest}")), "{said}");
        change(format!("delete from _sqlx_migrations where version = {newest}")).await;
        assert_eq!(inspected(&pool).await, Ok(SchemaState::Older { missing: 1 }));
        for (version, expected) in [(2999, "is newer than this program"), (NUMBERED_BY_TIME + 1, "by another build")] {
            change(format!("insert into _sqlx_migrations values ({version}, 'x', now(), true, '', 0)")).await;
            let said = inspected(&pool).await.unwrap_err();
            assert!(said.contains(expected), "{said}");
            change(format!("delete from _sqlx_migrations where version = {version}")).await;
        }
        change("update _sqlx_migrations set checksum = '\\x00' where version = 1".to_owned()).await;
        assert!(inspected(&pool).await.unwrap_err().contains("its migration 1 is not this one's"));
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_role_without_the_rights_is_named_with_what_it_lacks(pool: PgPool) {
        let role = "landfall_doctor_poor";
        let run = async |sql: &str| {
            pool.execute(AssertSqlSafe(sql.to_owned())).await.unwrap();
        };
        run(&format!("drop role if exists {role}; create role {role}")).await;
        run(&format!(
            "revoke create on schema public from public; grant select on all tables in schema public to {role}"
        ))
        .await;
        let poor = PgPool::connect_with((*pool.connect_options()).clone().options([("role", role)])).await.unwrap();
        let lacks = async |expected: &str| {
            let said = inspected(&poor).await.unwrap_err();
            assert!(said.contains(role) && said.contains(expected), "{said}");
        };
        lacks("it may not write the table settings").await;
        run("delete from _sqlx_migrations where version > 1").await;
        lacks("grant usage, create on schema public to").await;
        run(&format!("grant create on schema public to {role}")).await;
        lacks("another role owns its table of migrations").await;
        poor.close().await;
        run(&format!("drop owned by {role}; drop role {role}")).await;
    }

    #[sqlx::test(migrator = "crate::store::MIGRATOR")]
    async fn a_server_that_accepts_no_changes_is_named(pool: PgPool) {
        let options = (*pool.connect_options()).clone().options([("default_transaction_read_only", "on")]);
        let standby = PgPool::connect_with(options).await.unwrap();
        let mut conn = standby.acquire().await.unwrap();
        let server = server(&mut conn).await.unwrap();
        let said = schema(&mut conn, &server).await.unwrap_err().to_string();
        assert!(said.ends_with("name the primary server instead of a standby"), "{said}");
    }
}
