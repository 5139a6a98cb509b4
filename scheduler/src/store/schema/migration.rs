//! Migrates the schema when a scheduler starts.

use sqlx::PgConnection;
use sqlx::migrate::MigrateError;
use sqlx::postgres::PgDatabaseError;

use crate::store::schema::migration_obstacle::{obstacle, unknown_migration};
use crate::store::schema::obstacle_messages::MigrationObstacle;
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
