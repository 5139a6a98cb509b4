//! Why a configuration cannot be used.

use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(
        "{0} does not exist: enrol this agent first, with the command that `landfall agents enrol` prints, or give \
         --dir"
    )]
    Missing(PathBuf),
    #[error("read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    /// Invalid TOML, or an unknown key or value.
    #[error("{path}: {reason}")]
    Parse {
        path: PathBuf,
        /// The problem, and the line of the file where it is.
        reason: String,
    },
    #[error("{key}: {reason}")]
    Invalid { key: &'static str, reason: String },
}
