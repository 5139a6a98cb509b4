//! Decides from Postgres' error and the database's contents why the schema cannot be migrated. The
//! wording of a message never decides.

use sqlx::PgConnection;
use sqlx::postgres::PgDatabaseError;

use crate::store::rows::Rows;
use crate::store::schema::migration_numbers::{NUMBERED_BY_TIME, newest};
use crate::store::{Error, MIGRATOR};

use super::obstacle_messages::MigrationObstacle;

/// The database role of this connection, with its database and schema.
pub(super) struct DatabaseRole {
    pub(super) role: String,
    pub(super) database: String,
    pub(super) schema: String,
    pub(super) creates: bool,
}

pub(super) async fn place(conn: &mut PgConnection) -> Result<DatabaseRole, Error> {
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
pub(super) async fn obstacle(
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
