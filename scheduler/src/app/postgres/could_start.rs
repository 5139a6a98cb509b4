//! Checks, without starting it, whether a scheduler could start the private Postgres of a data
//! directory.

use std::path::{Path, PathBuf};

use nix::unistd::Uid;

use super::account::Account;
use super::cluster::{self, Found};
use super::error::PostgresError;
use super::start_and_stop::PrivatePostgres;

/// The server that would be used for a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckedPostgres {
    pub(crate) program: PathBuf,
    pub(crate) major: String,
    /// Whether the cluster already exists.
    pub(crate) made: bool,
}

impl PrivatePostgres {
    /// Checks whether a scheduler that runs as the user `scheduler` could start the server of this
    /// data directory, which need not exist yet. Changes nothing. Runs programs, so it may block.
    ///
    /// # Errors
    /// See [`PrivatePostgres::start`].
    pub(crate) fn check(data_dir: &Path, scheduler: Uid) -> Result<CheckedPostgres, PostgresError> {
        let account = Account::of_server_of(scheduler)?;
        Account::check_programs()?;
        let present = data_dir.ancestors().find(|folder| folder.exists()).unwrap_or(data_dir);
        account.check_reach(present)?;
        let cluster = Self::cluster(data_dir);
        let binaries = cluster::fitting_binaries(&cluster, data_dir)?;
        let made = cluster::found(&cluster, &account)? == Found::Cluster;
        let major = binaries.major().to_owned();
        Ok(CheckedPostgres { program: binaries.postgres(), major, made })
    }
}
