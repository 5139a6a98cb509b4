//! Migrates the schema when a scheduler starts. If that fails, explains to operators what to do.
//!
//! The code recognises the cause of a failure by Postgres' error code and the database's contents,
//! never by the wording of a message.

pub(crate) mod inspection;
pub(crate) mod restores;
pub(crate) mod retention;
pub(crate) mod snapshots;

use sqlx::PgConnection;
use sqlx::migrate::MigrateError;
use sqlx::postgres::PgDatabaseError;

use super::rows::Rows;
use super::{Error, MIGRATOR};

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
