//! Reads the folder of a store.

use std::path::{Path, PathBuf};

use crate::config::StoreConfig;
use crate::warc::ResponseLine;

/// The configuration of a store in this folder that requires no free space.
pub(crate) fn store_config(folder: &Path) -> StoreConfig {
    StoreConfig { min_free_bytes: 0, ..StoreConfig::in_folder(folder.to_owned()) }
}

/// The files in a folder whose names end in `ending`, sorted.
pub(crate) fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.to_str().unwrap().ends_with(ending));
    files.sort_unstable();
    files
}

/// The lines that describe all responses stored in a folder.
pub(crate) fn stored_lines(folder: &Path) -> Vec<ResponseLine> {
    let text: String = files(folder, ".jsonl").iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
