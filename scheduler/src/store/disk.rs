//! The database's disk: how it is noticed that nothing more fits on it, and where an operator makes room.

use std::sync::OnceLock;

use sqlx::PgConnection;
use sqlx::postgres::PgConnectOptions;

use super::Error;
use super::rows::Rows;

/// Postgres' code for it, whichever file it could not make, extend or write.
const DISK_FULL: &str = "53100";

/// Where the disk is, as a sentence goes on behind "make room". A process has one database, and errors know of none.
static PLACE: OnceLock<String> = OnceLock::new();

/// Whether it is the reason of an error.
pub(super) fn is_full(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| code == DISK_FULL)
}

/// Where to make room.
pub(super) fn place() -> &'static str {
    PLACE.get().map_or("there", String::as_str)
}

/// Asks once where it is, as far as this user may know.
pub(super) async fn find_place(conn: &mut PgConnection, options: &PgConnectOptions) -> Result<(), Error> {
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
    // Another start in the same process found it already.
    drop(PLACE.set(place));
    Ok(())
}
