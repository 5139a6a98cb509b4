//! The folder of an outbox: a file an outcome, written whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use landfall_proto::v1::OutcomeReport;
use prost::Message as _;

use super::LeaseKey;
use crate::disk::folder::{self, OpenError, Purpose};

/// Two agents would offer each other's outcomes.
const FOLDER: Purpose = Purpose { what: "outcomes", does: "runs with", otherwise: "set outbox.folder" };

const KEPT: &str = "outcome";
/// What one ends in that is being written; what a crash left of it was never promised to anybody.
const UNFINISHED: &str = "new";
/// What one ends in that says nothing that could be understood.
const UNREADABLE: &str = "unreadable";

/// The folder. Whoever has it is the only process that has.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    _lock: File,
}

impl Folder {
    /// Opens a folder, and reads the outcomes in it. A file that holds none is renamed and warned of, never deleted.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<OutcomeReport>), OpenError> {
        let lock = FOLDER.take(path)?;
        let left = read_all(path).map_err(|source| FOLDER.unusable(path, source))?;
        Ok((Self { path: path.to_owned(), _lock: lock }, left))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes an outcome: it is on the disk when this returns, name and all.
    pub(super) fn write(&self, outcome: &OutcomeReport) -> io::Result<()> {
        let key = LeaseKey::from(outcome);
        let unfinished = self.path.join(name(key, UNFINISHED));
        let mut file = File::create(&unfinished)?;
        file.write_all(&outcome.encode_to_vec())?;
        file.sync_all()?;
        folder::rename(&unfinished, &self.path.join(name(key, KEPT)))
    }

    /// Removes the outcome of a lease. After a crash it may be there again: then it is offered once more.
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
                tracing::warn!(file = %path.display(), "this holds no outcome of that name; it is put aside");
                fs::rename(&path, path.with_extension(UNREADABLE))?;
            }
        }
    }
    Ok(outcomes)
}
