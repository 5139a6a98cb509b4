//! Migrates the schema when a scheduler starts. If that fails, explains to operators what to do.
//!
//! The code recognises the cause of a failure by Postgres' error code and the database's contents,
//! never by the wording of a message.

pub(crate) mod inspection;
mod migration_obstacle;
pub(crate) mod restores;
pub(crate) mod retention;
pub(crate) mod snapshots;

use sqlx::PgConnection;
use sqlx::migrate::MigrateError;
use sqlx::postgres::PgDatabaseError;

use super::rows::Rows;
use super::{Error, MIGRATOR};
pub use migration_obstacle::MigrationObstacle;

/// The lowest migration number of builds before the first release, which numbered their migrations
/// by time. The migration numbers of releases start at 1.
pub const NUMBERED_BY_TIME: i64 = 10_000_000_000_000;

/// The number of the newest migration in this program.
pub fn newest() -> i64 {
    MIGRATOR.iter().map(|migration| migration.version).max().unwrap_or(0)
}

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
