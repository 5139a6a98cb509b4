//! Tells the operator why the schema cannot be migrated, and what to do.

use sqlx::migrate::MigrateError;

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
