//! `landfall backup` and `landfall restore`: write a scheduler's database and secrets into one
//! file, and restore both from such a file.
//!
//! A backup contains a snapshot of the database, taken while schedulers run, and the secrets that
//! belong to the database. The file is a tar (`backup/backup_file.rs`) of `manifest.json`, the
//! secrets, `database.dump` (from `pg_dump --format=custom`) and `SHA256SUMS`. The file is written
//! completely or not at all. `store::schema::histories` handles agents that continued to work after
//! the backup.

mod backup_file;
mod dump_and_secrets;
mod make_backup;
mod restore;

pub use make_backup::{Backup, MadeBackup, backup};
pub use restore::{Restore, RestoredBackup, restore};

#[cfg(test)]
mod tests;
