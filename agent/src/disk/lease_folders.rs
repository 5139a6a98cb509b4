//! The folders in which external crawlers store what they fetch, one per lease. Only a limited
//! number of finished folders is kept; the oldest are removed first.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::disk::folder::{FolderError, FolderPurpose, blocking};
use crate::disk::lease_key::LeaseKey;

/// The folder is locked because two agents that shared it would remove each other's folders.
const FOLDER: FolderPurpose = FolderPurpose { what: "crawlers' output", otherwise: "set exec.folder" };

/// A handle on the folders. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LeaseFolders {
    folder: Arc<Path>,
    keep: usize,
    /// The finished folders, oldest first. This lock is never held during disk I/O.
    finished: Arc<Mutex<VecDeque<PathBuf>>>,
    _lock: Arc<File>,
}

impl LeaseFolders {
    /// Opens the folder, which is created if missing. Lease folders left by an earlier process
    /// count as finished. The oldest of them are removed until `keep` are left.
    pub fn open(folder: &Path, keep: u32) -> Result<Self, FolderError> {
        let unusable = |source| FOLDER.unusable(folder, source);
        let lock = FOLDER.take(folder)?;
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        let mut finished = VecDeque::from(lease_folders(folder).map_err(unusable)?);
        let excess = finished.len().saturating_sub(keep);
        finished.drain(..excess).try_for_each(|old| remove(&old)).map_err(unusable)?;
        let finished = Arc::new(Mutex::new(finished));
        Ok(Self { folder: folder.into(), keep, finished, _lock: Arc::new(lock) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    /// Creates the empty folder of a lease.
    pub(crate) async fn create(&self, key: LeaseKey) -> io::Result<PathBuf> {
        let folder = self.folder.join(name(key));
        self.finished.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != folder);
        blocking(move || {
            // A restarted agent may get the same lease again, so the folder may exist.
            remove(&folder)?;
            fs::create_dir(&folder)?;
            Ok(folder)
        })
        .await
    }

    /// Records that a lease's folder is finished. If there are more than `keep` finished folders,
    /// removes the oldest.
    pub(crate) async fn finish(&self, folder: PathBuf) {
        let excess: Vec<PathBuf> = {
            let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
            finished.push_back(folder);
            let excess = finished.len().saturating_sub(self.keep);
            finished.drain(..excess).collect()
        };
        if let Err(error) = blocking(move || excess.iter().try_for_each(|old| remove(old))).await {
            tracing::warn!(%error, "cannot remove the output of an old crawl");
        }
    }
}

fn name(key: LeaseKey) -> String {
    format!("{}-{}", key.task_id, key.token)
}

/// Whether a name is that of a lease's folder. Files and folders with other names are never
/// removed.
fn is_lease(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.split_once('-').is_some_and(|(task, token)| number(task) && number(token))
}

/// Removes a folder. A missing folder is not an error, because an operator may have moved it away.
fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The lease folders in a folder, oldest first.
fn lease_folders(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() && entry.file_name().to_str().is_some_and(is_lease) {
            let changed = entry.metadata()?.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            found.push((changed, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(task_id: i64, token: i64) -> LeaseKey {
        LeaseKey { task_id, token }
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = entries.filter(|name| name != "lock").collect();
        names.sort_unstable();
        names
    }

    #[tokio::test]
    async fn only_the_newest_finished_folders_are_kept() {
        let root = tempfile::tempdir().unwrap();
        let folders = LeaseFolders::open(root.path(), 2).unwrap();
        let running = folders.create(key(9, 1)).await.unwrap();
        for task in 1..=4 {
            let folder = folders.create(key(task, 1)).await.unwrap();
            fs::write(folder.join("page"), "x").unwrap();
            folders.finish(folder).await;
        }
        assert_eq!(names(root.path()), ["3-1", "4-1", "9-1"]);
        assert!(running.is_dir(), "a running crawl's folder does not count");
    }

    #[tokio::test]
    async fn a_restart_counts_what_is_left_and_removes_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        for (name, age) in [("1-1", 30), ("2-7", 10), ("3-1", 20), ("notes", 40), ("4-1-old", 40)] {
            let folder = root.path().join(name);
            fs::create_dir(&folder).unwrap();
            let changed = crate::machine::clock::wall() - std::time::Duration::from_secs(age);
            File::open(&folder).unwrap().set_modified(changed).unwrap();
        }
        fs::write(root.path().join("5-1"), "a file").unwrap();
        let folders = LeaseFolders::open(root.path(), 2).unwrap();
        assert_eq!(names(root.path()), ["2-7", "3-1", "4-1-old", "5-1", "notes"]);
        let refused = LeaseFolders::open(root.path(), 2).unwrap_err().to_string();
        assert!(refused.starts_with("another process uses ") && refused.contains("set exec.folder"), "{refused}");
        let again = folders.create(key(2, 7)).await.unwrap();
        fs::write(again.join("page"), "x").unwrap();
        let fresh = folders.create(key(2, 7)).await.unwrap();
        assert_eq!(fs::read_dir(fresh).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn no_folder_is_kept_if_none_shall_be() {
        let root = tempfile::tempdir().unwrap();
        let folders = LeaseFolders::open(root.path(), 0).unwrap();
        let folder = folders.create(key(1, 1)).await.unwrap();
        folders.finish(folder.clone()).await;
        assert!(!folder.exists());
    }
}
