//! Defines the errors of invalid settings.

/// Every message names the invalid setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("{0}")]
    Nonsense(String),
    /// The matrix is too small for these settings.
    #[error("{0}")]
    Matrix(String),
    /// The numbers of nodes in the nodes' file and in the matrix differ.
    #[error("{0}")]
    Nodes(String),
}

impl SettingsError {
    pub(super) fn zero(setting: &str) -> Self {
        Self::Nonsense(format!("{setting} must be at least 1"))
    }
}
