//! The folder of the outbox, with one file per outcome. Each file is written atomically.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use landfall_proto::v1::OutcomeReport;
use prost::Message as _;

use crate::disk::folder::{self, FolderError, FolderPurpose};
use crate::disk::lease_key::LeaseKey;

/// The folder is locked because two agents that shared it would report each other's outcomes.
const FOLDER: FolderPurpose = FolderPurpose { what: "outcomes", otherwise: "set outbox.folder" };

const KEPT: &str = "outcome";
/// Suffix of a file that is being written. After a crash such a file can be deleted, because the
/// agent has never reported its outcome.
const UNFINISHED: &str = "new";
/// Suffix of a file that could not be parsed.
const UNREADABLE: &str = "unreadable";

/// The folder, locked by this process.
#[derive(Debug)]
pub(super) struct OutboxFolder {
    path: PathBuf,
    _lock: File,
}

impl OutboxFolder {
    /// Opens a folder and reads its outcomes. A file that cannot be parsed is renamed, not deleted,
    /// and a warning is logged.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<OutcomeReport>), FolderError> {
        let lock = FOLDER.take(path)?;
        let left = read_all(path).map_err(|source| FOLDER.unusable(path, source))?;
        Ok((Self { path: path.to_owned(), _lock: lock }, left))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes an outcome, and syncs the content and the name of its file.
    pub(super) fn write(&self, outcome: &OutcomeReport) -> io::Result<()> {
        let key = LeaseKey::from(outcome);
        let unfinished = self.path.join(name(key, UNFINISHED));
        let mut file = File::create(&unfinished)?;
        file.write_all(&outcome.encode_to_vec())?;
        file.sync_all()?;
        folder::rename(&unfinished, &self.path.join(name(key, KEPT)))
    }

    /// Removes the outcome of a lease. The removal is not synced, so after a crash the file may
    /// exist again. The agent then reports the outcome once more.
    pub(super) fn remove(&self, key: LeaseKey) -> io::Result<()> {
        fs::remove_file(self.path.join(name(key, KEPT)))
    }
}

fn name(key: LeaseKey, ending: &str) -> String {
    format!("{}-{}.{ending}", key.task_id, key.token)
}

fn read_all(folder: &Path) -> io::Result<Vec<OutcomeReport>> {
    let mut outcomes = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if ending == Some(UNFINISHED) {
            fs::remove_file(&path)?;
        }
        if ending != Some(KEPT) {
            continue;
        }
        let bytes = fs::read(&path)?;
        match OutcomeReport::decode(bytes.as_slice()) {
            Ok(outcome) if path.ends_with(name(LeaseKey::from(&outcome), KEPT)) => outcomes.push(outcome),
            _ => {
                tracing::warn!(file = %path.display(),
                    "this file does not hold the outcome of its name; it is renamed to .unreadable");
                fs::rename(&path, path.with_extension(UNREADABLE))?;
            }
        }
    }
    Ok(outcomes)
}
