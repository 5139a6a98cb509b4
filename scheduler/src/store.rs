//! The store: the only module that contains SQL.
//!
//! Each kind of entity (agents, tasks, leases, ...) has its own file. All functions take the
//! connection, so callers decide what is in one transaction. A function that needs a transaction
//! takes a [`Tx`] or a [`Snapshot`], and one that needs locked rows takes them as [`Locked`]. Only
//! Postgres' `now()` decides whether something has expired. A row with an invalid value causes a
//! typed error, never a panic.
//!
//! # The order of locks
//!
//! A transaction waits for locks only in this order, so that no two transactions deadlock:
//!
//! 1. the row of a role's term (`terms`), which every transaction of a job locks first;
//! 2. the row of settings, which also locks the landmarks;
//! 3. the lock of enrolments, then an enrolment token;
//! 4. agents, then their sessions;
//! 5. the lock of a submission's key, then a change of a batch, then the batch;
//! 6. the locks of origins, in the order of their text, then sites in the order of their identifiers;
//! 7. tasks in the order of their identifiers;
//! 8. the lock of an address, and rows that belong to one task or site: leases, holds, circuits,
//!    confirmations, and measurement orders before measurements. A task that waits for a
//!    confirmation is locked after it, because such a task is held, and a transaction that asks for
//!    a confirmation locks only tasks that are not held.
//!
//! A transaction that needs an earlier lock than those it has does not wait for it (`skip locked`),
//! or leaves the work to a later transaction. `Db::tx` repeats a transaction that deadlocks all the
//! same.
//!
//! Task states change faster than Postgres updates its statistics. If the statistics show no rows
//! in a state, the planner expects the index on states to return almost nothing. It then prefers
//! this index to the index on keys or sites, and the statement may read all tasks in that state. To
//! prevent this, statements that find tasks by key or by site compare `state::text`, which is not
//! indexed, or test the state in an earlier step (a separate statement or an `offset 0` subquery).

pub mod agents;
pub(crate) mod assignments;
pub mod batches;
pub(crate) mod clock;
mod counts;
pub mod db;
pub(crate) mod embeddings;
mod enums;
pub(crate) mod leases;
mod locked;
pub(crate) mod measurements;
pub(crate) mod names;
pub(crate) mod reports;
mod rows_and_errors;
pub(crate) mod schedulers;
pub(crate) mod schema;
pub mod servers;
pub mod settings;
pub mod sites;
pub(crate) mod tasks;
mod tx;
pub(crate) mod types;

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod interleavings;

use chrono::{DateTime, Utc};

use crate::model::geo::Position;

pub use counts::TransactionCount;
pub use db::{Db, MayConflict, Share, Snapshot, connect};
pub use locked::Locked;
pub(crate) use rows_and_errors::DISK_FULL;
pub use rows_and_errors::Error;
pub use schema::preparation::prepare;
pub use tx::Tx;

/// The embedded migrations. A migration cannot be undone.
pub static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("../migrations");

/// Formats a time for messages, to the minute.
pub(crate) fn minute(at: &DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M UTC").to_string()
}

fn position(table: &'static str, latitude: Option<f64>, longitude: Option<f64>) -> Result<Option<Position>, Error> {
    Position::from_parts(latitude, longitude)
        .map_err(|_| Error::inconsistent(table, "latitude, longitude", &format!("{latitude:?}, {longitude:?}")))
}
