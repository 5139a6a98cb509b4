//! The file in which an external crawler may report what it fetched, as a JSON object:
//! `{"pages": 12, "bytes": 40960, "failures": 1}`. Absent fields are zero.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::Deserialize;

/// Maximum size of the file in bytes. The file's three numbers need fewer than a hundred bytes.
const MAX_FILE: u64 = 4096;
/// The largest values that the scheduler can store.
const MAX_COUNT: u32 = i32::MAX.cast_unsigned();
const MAX_BYTES: u64 = i64::MAX.cast_unsigned();

/// What a crawler fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Statistics {
    pub(super) pages: u32,
    /// Body bytes of pages.
    pub(super) bytes: u64,
    /// Number of failed requests.
    pub(super) failures: u32,
}

#[derive(Debug, thiserror::Error)]
pub(super) enum StatisticsError {
    #[error("read the statistics: {0}")]
    Read(io::Error),
    #[error("the statistics are not a regular file")]
    NotFile,
    #[error("the statistics have more than {MAX_FILE} bytes")]
    TooLarge,
    #[error("the statistics are no JSON object of pages, bytes and failures: {0}")]
    Invalid(serde_json::Error),
    #[error("the statistics' {field} is more than {max}")]
    OutOfRange { field: &'static str, max: u64 },
}

/// Reads the file; `None` if the crawler wrote none. Blocks.
pub(super) fn read(file: &Path) -> Result<Option<Statistics>, StatisticsError> {
    match std::fs::symlink_metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(StatisticsError::Read(error)),
        // Reading a named pipe would never end.
        Ok(found) if !found.is_file() => return Err(StatisticsError::NotFile),
        Ok(_) => {}
    }
    let mut bytes = Vec::new();
    let file = File::open(file).map_err(StatisticsError::Read)?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(StatisticsError::Read)?;
    if u64::try_from(bytes.len()).is_ok_and(|bytes| bytes > MAX_FILE) {
        return Err(StatisticsError::TooLarge);
    }
    let statistics: Statistics = serde_json::from_slice(&bytes).map_err(StatisticsError::Invalid)?;
    let Statistics { pages, bytes, failures } = statistics;
    let (count, most) = (u64::from(MAX_COUNT), MAX_BYTES);
    let limits = [("pages", pages.into(), count), ("bytes", bytes, most), ("failures", failures.into(), count)];
    match limits.into_iter().find(|(_, value, max)| value > max) {
        Some((field, _, max)) => Err(StatisticsError::OutOfRange { field, max }),
        None => Ok(Some(statistics)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Option<Statistics>, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("statistics.json");
        std::fs::write(&file, text).unwrap();
        read(&file).map_err(|error| error.to_string())
    }

    #[test]
    fn absent_fields_are_zero_and_an_absent_file_is_no_error() {
        let all = Statistics { pages: 12, bytes: 40_960, failures: 1 };
        assert_eq!(read_text(r#"{"pages": 12, "bytes": 40960, "failures": 1}"#), Ok(Some(all)));
        assert_eq!(read_text("{}\n"), Ok(Some(Statistics::default())));
        assert!(matches!(read(Path::new("/nowhere/statistics.json")), Ok(None)));
    }

    #[test]
    fn invalid_statistics_are_refused_with_the_reason() {
        let cases = [
            ("", "EOF"),
            ("12", "invalid type"),
            (r#"{"page": 1}"#, "unknown field `page`"),
            (r#"{"pages": -1}"#, "invalid value: integer `-1`"),
            (r#"{"pages": 1.5}"#, "invalid type: floating point"),
            (r#"{"pages": 2147483648}"#, "pages is more than 2147483647"),
            (r#"{"failures": 4294967295}"#, "failures is more than 2147483647"),
            (r#"{"bytes": 9223372036854775808}"#, "bytes is more than 9223372036854775807"),
            (r#"{"bytes": 1e400}"#, "number out of range"),
        ];
        for (text, expected) in cases {
            let error = read_text(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let large = read_text(&format!("{{{}}}", " ".repeat(5000))).unwrap_err();
        assert_eq!(large, "the statistics have more than 4096 bytes");
        assert!(matches!(read(Path::new("/dev/zero")), Err(StatisticsError::NotFile)));
    }
}
