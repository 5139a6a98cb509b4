//! Migrates the schema when a scheduler starts. If that fails, explains to operators what to do.
//!
//! The code recognises the cause of a failure by Postgres' error code and the database's contents,
//! never by the wording of a message.

pub(crate) mod inspection;
mod migration;
mod migration_numbers;
mod migration_obstacle;
mod obstacle_messages;
pub(crate) mod restores;
pub(crate) mod retention;
pub(crate) mod snapshots;

pub use migration::migrate;
pub use migration_numbers::{NUMBERED_BY_TIME, newest};
pub use migration_obstacle::unknown_migration;
pub use obstacle_messages::MigrationObstacle;
