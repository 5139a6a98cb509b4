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

/// A TOML error as one sentence with the line number, instead of the library's excerpt of the file.
pub(crate) fn one_line(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().lines().next().unwrap_or_default();
    match error.span() {
        Some(span) => {
            let line = text.get(..span.start).unwrap_or_default().matches('\n').count() + 1;
            format!("line {line}: {message}")
        }
        None => message.to_owned(),
    }
}
