//! The enum `ConfigError` names the reasons why a configuration is invalid.

use std::fmt::Display;
use std::path::PathBuf;

/// Why a configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("read the configuration {path}")]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is not TOML, or has an unknown key or a value of the wrong type. Lines are
    /// counted from 1.
    #[error("{path}:{line}: {message}")]
    Parse { path: PathBuf, line: usize, message: String },
    /// A value is out of range, or contradicts another value.
    #[error("{key} must be {rule}, but is {value}")]
    Value { key: &'static str, rule: String, value: String },
    /// The file is valid TOML, but a value in it is not valid.
    #[error("{path}")]
    In { path: PathBuf, source: Box<ConfigError> },
}

/// The error for a value that does not follow the rule.
pub(super) fn value(key: &'static str, rule: impl Into<String>, value: impl Display) -> ConfigError {
    ConfigError::Value { key, rule: rule.into(), value: value.to_string() }
}
