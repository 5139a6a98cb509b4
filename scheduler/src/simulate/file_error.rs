//! Defines the errors of reading a matrix or its nodes from a file.

use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("read {}: {source}", file.display())]
    Read { file: PathBuf, source: std::io::Error },
    /// The content of the file is invalid.
    #[error("{0}")]
    Nonsense(String),
}

impl FileError {
    pub(super) fn read(file: &Path) -> impl Fn(std::io::Error) -> Self {
        |source| Self::Read { file: file.to_owned(), source }
    }

    /// `place` is a text that follows the file's name directly, such as ", line 3".
    pub(super) fn at(file: &Path, place: &str, complaint: impl std::fmt::Display) -> Self {
        Self::Nonsense(format!("{}{place}: {complaint}", file.display()))
    }
}
