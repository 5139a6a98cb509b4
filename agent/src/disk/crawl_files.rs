//! The folder of running crawls, with one file per lease, from which the crawl can resume after a
//! restart, and the folders in which external crawlers store what they fetch. Only a limited number
//! of finished folders is kept; the oldest are removed first.
//!
//! If a task is leased to this agent again, the new lease takes over the file of the previous
//! lease. A file is deleted when the crawl's outcome is in the outbox, or when the file is older
//! than seven days. Files are found through an index in memory. The index is built at startup and
//! stays correct, because only one process uses the folder. A one-off crawl, which has no lease,
//! stores its file beside its pages.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::disk::folder::{FolderError, FolderPurpose, blocking};
use crate::machine::clock;

/// The folder is locked because two agents that shared it would resume each other's crawls.
const FOLDER: FolderPurpose = FolderPurpose { what: "crawls", otherwise: "set crawls.folder" };

const EXTENSION: &str = "crawl";
/// Maximum age of an unused file. An older crawl starts from the beginning.
const MOST_AGE: Duration = Duration::from_secs(7 * 86_400);

const SWEEP_EVERY: Duration = Duration::from_secs(3600);

/// A handle on the folder. Cheap to clone.
#[derive(Debug, Clone)]
pub struct CrawlFiles {
    folder: Arc<Path>,
    /// This lock is never held during disk I/O.
    index: Arc<Mutex<FileIndex>>,
    _lock: Arc<File>,
}

#[derive(Debug)]
struct FileIndex {
    /// For each task, the tokens of its leases that have files or may have files.
    tokens: HashMap<i64, BTreeSet<i64>>,
    swept_at: Instant,
}

impl CrawlFiles {
    /// Opens the folder, creates it if missing, and removes old files.
    pub fn open(folder: &Path) -> Result<Self, FolderError> {
        let unusable = |source| FOLDER.unusable(folder, source);
        let lock = FOLDER.take(folder)?;
        remove_old(folder).map_err(unusable)?;
        let tokens = tokens_in(folder).map_err(unusable)?;
        let index = FileIndex { tokens, swept_at: Instant::now() };
        Ok(Self { folder: folder.into(), index: Arc::new(Mutex::new(index)), _lock: Arc::new(lock) })
    }

    /// Whether it is time to remove old files, which happens once an hour.
    fn is_sweep_due(&self) -> bool {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let due = index.swept_at.elapsed() >= SWEEP_EVERY;
        if due {
            index.swept_at = Instant::now();
        }
        due
    }

    /// The path of a lease's file. If a previous lease of the task has a file, it is renamed to
    /// this path.
    pub(crate) async fn file_of(&self, key: LeaseKey) -> io::Result<PathBuf> {
        let folder = Arc::clone(&self.folder);
        if self.is_sweep_due() {
            let folder = Arc::clone(&folder);
            blocking(move || remove_old(&folder)).await?.into_iter().for_each(|numbers| self.drop_token(numbers));
        }
        let mut former = self.take_older(key);
        self.note(key);
        blocking(move || {
            let wanted = folder.join(name(key.task_id, key.token));
            // Only the newest file is taken over, because it has the most progress.
            while let Some(token) = former.pop_last() {
                let found = std::fs::rename(folder.join(name(key.task_id, token)), &wanted);
                if is_there(found)? {
                    break;
                }
            }
            remove(&folder, key.task_id, &former)?;
            Ok(wanted)
        })
        .await
    }

    /// Deletes the files of a lease and of earlier leases of its task.
    pub(crate) async fn forget(&self, key: LeaseKey) {
        let (folder, mut tokens) = (Arc::clone(&self.folder), self.take_older(key));
        tokens.insert(key.token);
        self.drop_token((key.task_id, key.token));
        let removed = blocking(move || remove(&folder, key.task_id, &tokens)).await;
        if let Err(error) = removed {
            // The file will be removed when it is too old.
            tracing::warn!(task.id = key.task_id, token = key.token, %error,
                "cannot remove the file of a finished crawl");
        }
    }

    /// Removes the task's tokens that are older than the token of `key` from the index, and returns
    /// them.
    fn take_older(&self, key: LeaseKey) -> BTreeSet<i64> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tokens) = index.tokens.get_mut(&key.task_id) else { return BTreeSet::new() };
        let newer = tokens.split_off(&key.token);
        std::mem::replace(tokens, newer)
    }

    fn note(&self, key: LeaseKey) {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        index.tokens.entry(key.task_id).or_default().insert(key.token);
    }

    fn drop_token(&self, (task_id, token): (i64, i64)) {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(tokens) = index.tokens.get_mut(&task_id) else { return };
        tokens.remove(&token);
        if tokens.is_empty() {
            index.tokens.remove(&task_id);
        }
    }
}

/// Removes old files, and returns the tasks and tokens of the leases to which they belonged.
fn remove_old(folder: &Path) -> io::Result<Vec<(i64, i64)>> {
    let mut removed = Vec::new();
    for file in files(folder)? {
        let age = match file.metadata().and_then(|metadata| metadata.modified()) {
            // A file whose modification time is in the future does not count as old.
            Ok(changed) => clock::wall().duration_since(changed).unwrap_or_default(),
            // The file is missing because its crawl has just ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        if age > MOST_AGE {
            is_there(std::fs::remove_file(&file))?;
            removed.extend(numbers_of(&file));
        }
    }
    Ok(removed)
}

fn remove(folder: &Path, task_id: i64, tokens: &BTreeSet<i64>) -> io::Result<()> {
    tokens.iter().try_for_each(|token| is_there(std::fs::remove_file(folder.join(name(task_id, *token)))).map(drop))
}

/// Whether the file that was to be renamed or removed existed. A missing file is not an error: it
/// may have been removed because of its age, or never created.
fn is_there(done: io::Result<()>) -> io::Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The name does not contain the history, because the file's first line names the site and the
/// history, and a crawl overwrites the file of another site or history.
fn name(task_id: i64, token: i64) -> String {
    format!("{task_id}-{token}.{EXTENSION}")
}

/// The task and the token of the lease to which a file belongs.
fn numbers_of(file: &Path) -> Option<(i64, i64)> {
    let (task_id, token) = file.file_stem()?.to_str()?.split_once('-')?;
    Some((task_id.parse().ok()?, token.parse().ok()?))
}

fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let files = std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path()));
    let ends = |path: &PathBuf| path.extension().is_some_and(|ending| ending == EXTENSION);
    files.filter(|path| path.as_ref().map_or(true, ends)).collect()
}

fn tokens_in(folder: &Path) -> io::Result<HashMap<i64, BTreeSet<i64>>> {
    let mut tokens: HashMap<i64, BTreeSet<i64>> = HashMap::new();
    for (task_id, token) in files(folder)?.iter().filter_map(|file| numbers_of(file)) {
        tokens.entry(task_id).or_default().insert(token);
    }
    Ok(tokens)
}

/// The file in `folder` that stores the state of a one-off crawl, which has no lease, until it
/// ends.
pub(crate) fn one_off_file(folder: &Path, site: &str) -> PathBuf {
    let name: String = site.chars().take(100).map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    folder.join(format!("{name}.{EXTENSION}"))
}

/// The folder is locked because two agents that shared it would remove each other's folders.
const OUTPUT_FOLDER: FolderPurpose = FolderPurpose { what: "crawlers' output", otherwise: "set exec.folder" };

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
        let unusable = |source| OUTPUT_FOLDER.unusable(folder, source);
        let lock = OUTPUT_FOLDER.take(folder)?;
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        let mut finished = VecDeque::from(lease_folders(folder).map_err(unusable)?);
        let excess = finished.len().saturating_sub(keep);
        finished.drain(..excess).try_for_each(|old| remove_folder(&old)).map_err(unusable)?;
        let finished = Arc::new(Mutex::new(finished));
        Ok(Self { folder: folder.into(), keep, finished, _lock: Arc::new(lock) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.folder
    }

    /// Creates the empty folder of a lease.
    pub(crate) async fn create(&self, key: LeaseKey) -> io::Result<PathBuf> {
        let folder = self.folder.join(folder_name(key));
        self.finished.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| *other != folder);
        blocking(move || {
            // A restarted agent may get the same lease again, so the folder may exist.
            remove_folder(&folder)?;
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
        if let Err(error) = blocking(move || excess.iter().try_for_each(|old| remove_folder(old))).await {
            tracing::warn!(%error, "cannot remove the output of an old crawl");
        }
    }
}

fn folder_name(key: LeaseKey) -> String {
    format!("{}-{}", key.task_id, key.token)
}

/// Whether a name is that of a lease's folder. Files and folders with other names are never
/// removed.
fn is_lease(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    name.split_once('-').is_some_and(|(task, token)| number(task) && number(token))
}

/// Removes a folder. A missing folder is not an error, because an operator may have moved it away.
fn remove_folder(folder: &Path) -> io::Result<()> {
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

/// Identifies a lease by its task, its fencing token, and the history of the scheduler's database in
/// which it was granted. Two histories may have granted different leases with the same numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseKey {
    pub task_id: i64,
    pub token: i64,
    /// 0 if the scheduler is too old to name it.
    pub history: i64,
}

/// Messages that contain the key of a lease.
macro_rules! keys {
    ($($message:ident)*) => {
        $(impl From<&landfall_proto::v1::$message> for LeaseKey {
            fn from(message: &landfall_proto::v1::$message) -> Self {
                Self { task_id: message.task_id, token: message.token, history: message.history }
            }
        })*
    };
}

keys!(HeldLease CrawlOrder OutcomeReport OutcomeAck PermitAnswer CancelOrder PreemptOrder);

impl From<LeaseKey> for landfall_proto::v1::HeldLease {
    fn from(LeaseKey { task_id, token, history }: LeaseKey) -> Self {
        Self { task_id, token, history }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(task_id: i64, token: i64) -> LeaseKey {
        LeaseKey { task_id, token, history: 1 }
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            files(folder).unwrap().iter().map(|file| file.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        names.sort_unstable();
        names
    }

    #[tokio::test]
    async fn a_new_lease_takes_over_the_newest_file_of_its_task_and_an_outcome_removes_it() {
        let folder = tempfile::tempdir().unwrap();
        for (task, token, text) in [(7, 2, "older"), (7, 10, "newer"), (8, 1, "another"), (7, 30, "of a lease to come")]
        {
            std::fs::write(folder.path().join(name(task, token)), text).unwrap();
        }
        std::fs::write(folder.path().join("x-y.crawl"), "no lease's").unwrap();
        let kept = CrawlFiles::open(folder.path()).unwrap();
        let file = kept.file_of(key(7, 11)).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "newer");
        assert_eq!(names(folder.path()), ["7-11.crawl", "7-30.crawl", "8-1.crawl", "x-y.crawl"]);
        assert!(!kept.file_of(key(9, 1)).await.unwrap().exists());
        kept.forget(key(7, 11)).await;
        assert_eq!(names(folder.path()), ["7-30.crawl", "8-1.crawl", "x-y.crawl"]);
    }

    #[tokio::test]
    async fn a_crawls_file_is_found_without_reading_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let kept = CrawlFiles::open(folder.path()).unwrap();
        // This file is not in the index, so only code that reads the folder again would find it.
        std::fs::write(folder.path().join(name(7, 1)), "not known").unwrap();
        let file = kept.file_of(key(7, 2)).await.unwrap();
        assert!(!file.exists());
        std::fs::write(&file, "ours").unwrap();
        let file = kept.file_of(key(7, 3)).await.unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "ours");
        kept.forget(key(7, 3)).await;
        assert_eq!(names(folder.path()), ["7-1.crawl"]);
        assert!(kept.index.lock().unwrap().tokens.is_empty());
    }

    #[test]
    fn no_two_agents_share_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = CrawlFiles::open(folder.path()).unwrap();
        let refused = CrawlFiles::open(folder.path()).unwrap_err().to_string();
        assert!(refused.starts_with("another process uses ") && refused.contains("set crawls.folder"), "{refused}");
        drop(first);
        CrawlFiles::open(folder.path()).unwrap();
    }

    #[test]
    fn old_files_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        for (task, age) in [(1, MOST_AGE + Duration::from_secs(60)), (2, Duration::ZERO)] {
            let file = std::fs::File::create(folder.path().join(name(task, 1))).unwrap();
            file.set_modified(clock::wall() - age).unwrap();
        }
        CrawlFiles::open(folder.path()).unwrap();
        assert_eq!(names(folder.path()), ["2-1.crawl"]);
    }

    fn folder_names(folder: &Path) -> Vec<String> {
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
        assert_eq!(folder_names(root.path()), ["3-1", "4-1", "9-1"]);
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
        assert_eq!(folder_names(root.path()), ["2-7", "3-1", "4-1-old", "5-1", "notes"]);
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
