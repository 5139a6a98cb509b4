//! The section `[store]` of `agent.toml`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The folder of fetched pages.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreConfig {
    /// The path of the folder, which is created if missing. Agents must not share the folder.
    pub folder: PathBuf,
    /// Size in bytes at which a file is closed and another started, 1 MiB to 10 GiB. Smaller limits
    /// make many files; larger files are slow to move.
    #[serde(default = "default_max_file")]
    pub max_file_bytes: u64,
    /// Free bytes on the disk below which crawls pause. Crawls continue when twice as many bytes
    /// are free. 0 disables the check. The default leaves room for the pages that fifty crawls are
    /// fetching.
    #[serde(default = "default_min_free")]
    pub min_free_bytes: u64,
}

impl StoreConfig {
    /// Permitted values of `max_file_bytes`.
    pub const FILE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=10 << 30;

    pub fn in_folder(folder: PathBuf) -> Self {
        Self { folder, max_file_bytes: default_max_file(), min_free_bytes: default_min_free() }
    }
}

const fn default_max_file() -> u64 {
    1 << 30
}

pub(super) const fn default_min_free() -> u64 {
    256 << 20
}
