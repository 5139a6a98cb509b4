//! Migrates the schema when a scheduler starts. If that fails, explains to operators what to do.
//!
//! The code recognises the cause of a failure by Postgres' error code and the database's contents,
//! never by the wording of a message.

pub(crate) mod backup_and_restore;
pub(crate) mod histories;
pub(crate) mod migration_and_inspection;
pub mod preparation;
pub(crate) mod retention;

pub use migration_and_inspection::{NUMBERED_BY_TIME, migrate, newest, unknown_migration};
