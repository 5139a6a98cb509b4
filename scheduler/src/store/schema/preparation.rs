//! Prepares a database for this program: finds its disk, and applies migrations.

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};

use super::backup_and_restore;
use crate::store::rows_and_errors::{Error, PLACE, Rows as _};
use crate::store::schema;

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
    // `PLACE` is already set if this process has opened the database before.
    drop(PLACE.set(place));
    Ok(())
}

/// Connects and applies migrations. Two schedulers may start at the same time, because the migrator
/// holds a lock.
pub async fn prepare(options: &PgConnectOptions) -> Result<(), Error> {
    // This connection has no timeouts, because a migration may take long, or wait for a migration
    // by another scheduler.
    let mut conn = options.connect().await?;
    if backup_and_restore::under_way(&mut conn).await? {
        return Err(Error::HalfRestored);
    }
    find_place_of_disk(&mut conn, options).await?;
    schema::migrate(&mut conn).await?;
    conn.close().await?;
    Ok(())
}
