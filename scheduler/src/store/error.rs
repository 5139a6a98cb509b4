//! The errors of the store: which of them pass, and the message for a full disk.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::schema::MigrationObstacle;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database is unreachable, or a statement failed.
    #[error("query the database")]
    Database(#[source] sqlx::Error),
    #[error("the database's disk is full: make room {}", place_of_disk())]
    DiskFull(#[source] sqlx::Error),
    #[error("inconsistent row: {table}.{column} is {value}")]
    Inconsistent { table: Cow<'static, str>, column: Cow<'static, str>, value: String },
    #[error(transparent)]
    Schema(#[from] MigrationObstacle),
    #[error("the database's schema is newer than this program (it has migration {0}): run the newer landfall")]
    NewerSchema(i64),
    #[error(
        "a restore into this database has not ended: when it no longer runs, empty the database (or remove the data \
         directory) and restore again"
    )]
    HalfRestored,
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match error {
            full if is_disk_full(&full) => Self::DiskFull(full),
            sqlx::Error::ColumnDecode { index, source } => Self::inconsistent("a statement", index, &source),
            other => Self::Database(other),
        }
    }
}

impl Error {
    pub fn inconsistent(
        table: impl Into<Cow<'static, str>>,
        column: impl Into<Cow<'static, str>>,
        value: &(impl ToString + ?Sized),
    ) -> Self {
        Self::Inconsistent { table: table.into(), column: column.into(), value: value.to_string() }
    }

    /// Whether Postgres refused a text because it contains a zero character, the only character
    /// that Postgres refuses.
    pub fn has_zero_character(&self) -> bool {
        const CHARACTER_NOT_IN_REPERTOIRE: &str = "22021";
        let Self::Database(sqlx::Error::Database(error)) = self else { return false };
        error.code().as_deref() == Some(CHARACTER_NOT_IN_REPERTOIRE)
    }

    /// Whether the same statement can succeed later.
    pub fn passes(&self) -> bool {
        match self {
            Self::Database(cause) => passes(cause),
            Self::DiskFull(_) => true,
            Self::Inconsistent { .. } | Self::Schema(_) | Self::NewerSchema(_) | Self::HalfRestored => false,
        }
    }
}

/// Whether a statement that failed with this error can succeed later. A retry can succeed if the
/// connection failed, or if Postgres is starting, stopping, short of resources or resolving a
/// conflict (classes 08, 40, 53 and 57).
fn passes(cause: &sqlx::Error) -> bool {
    if let sqlx::Error::Database(error) = cause {
        return error.code().is_some_and(|code| ["08", "40", "53", "57"].iter().any(|class| code.starts_with(class)));
    }
    matches!(
        cause,
        sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
    )
}

/// The SQLSTATE of an error caused by a full disk.
pub(crate) const DISK_FULL: &str = "53100";

/// Where the database's disk is, as text for the error message "make room ...". Only the database
/// knows where its disk is, and the code that formats an error has no connection to the database.
/// So the text is stored in a global variable. A process uses only one database.
pub(super) static PLACE: OnceLock<String> = OnceLock::new();

fn is_disk_full(error: &sqlx::Error) -> bool {
    error.as_database_error().and_then(sqlx::error::DatabaseError::code).is_some_and(|code| code == DISK_FULL)
}

fn place_of_disk() -> &'static str {
    PLACE.get().map_or("there", String::as_str)
}
