//! The enum `PostgresError` names the reasons why the private Postgres is not available.

use std::path::PathBuf;

/// Where Landfall looks for Postgres' programs, as named in messages.
pub(super) const LOOKED_IN: &str = "/usr/lib/postgresql, PATH and pg_config";

/// Why the private Postgres is not available.
#[derive(Debug, thiserror::Error)]
pub enum PostgresError {
    #[error(
        "no Postgres server is installed (looked in {LOOKED_IN}): install Debian's package postgresql, or give --database-url"
    )]
    NotInstalled,
    /// The cluster's folder contains other files.
    #[error("{0} is not empty and contains no Postgres cluster: choose another data directory with --data-dir")]
    Foreign(PathBuf),
    #[error(
        "root runs the private Postgres as the user postgres, who does not exist: install Debian's package \
         postgresql, or run landfall as an ordinary user"
    )]
    NoAccount,
    /// The user postgres may not enter the data directory.
    #[error(
        "the user postgres cannot pass through {blocked} to reach {path}: choose another directory with --data-dir \
         (/var/lib/landfall is the default), or run chmod o+x {blocked}"
    )]
    Unreachable {
        path: PathBuf,
        /// The directory above `path` that the user postgres may not enter.
        blocked: PathBuf,
    },
    #[error(
        "the program setpriv, which starts the private Postgres, cannot be run: install Debian's package util-linux"
    )]
    NoSetpriv,
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}
