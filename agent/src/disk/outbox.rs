//! Stores outcomes until the scheduler has acknowledged them, one file per outcome, each written
//! atomically. A failed write is tried again.
//!
//! An outcome is written to the disk before the agent reports it, and is removed only after the
//! scheduler has acknowledged it. So an outcome survives lost sessions, restarts and a `kill -9`,
//! and every session reports it again. The agent takes no lease while too many outcomes are
//! unacknowledged. So a scheduler that grants leases but never acknowledges outcomes cannot fill
//! the memory or the disk. While the disk is full, the agent takes no lease either
//! ([`Outbox::paused`]). The outbox never waits for the disk, so heartbeats continue even if the
//! disk hangs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use landfall_proto::v1::OutcomeReport;
use prost::Message as _;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::crawl_files::LeaseKey;
use super::folder::{self, FolderPurpose, blocking};
use crate::disk::folder::FolderError;
use crate::machine::free_space::LimitedDisk;

#[derive(Debug)]
pub struct Outbox {
    writer: OutcomeWriter,
    outcomes: BTreeMap<LeaseKey, OutcomeReport>,
    disk: LimitedDisk,
    removals: JoinSet<()>,
}

impl Outbox {
    /// Opens the outbox with the outcomes that an earlier process left in it. Creates the folder if
    /// missing. With fewer than `min_free_bytes` free bytes, the folder's disk counts as full.
    pub fn open(folder: &Path, min_free_bytes: u64) -> Result<Self, FolderError> {
        let (locked, left) = OutboxFolder::open(folder)?;
        if !left.is_empty() {
            tracing::info!(outcomes = left.len(), "outcomes of an earlier run await acknowledgement");
        }
        let outcomes = left.into_iter().map(|outcome| (LeaseKey::from(&outcome), outcome)).collect();
        let writer = OutcomeWriter::new(locked);
        let disk = LimitedDisk::at(folder, min_free_bytes);
        Ok(Self { writer, outcomes, disk, removals: JoinSet::new() })
    }

    pub fn folder(&self) -> &Path {
        self.writer.path()
    }

    pub fn writer(&self) -> OutcomeWriter {
        self.writer.clone()
    }

    /// Adds an outcome that [`OutcomeWriter::keep`] has written. The agent reports the outcome
    /// until it is acknowledged.
    pub fn put(&mut self, outcome: OutcomeReport) {
        self.outcomes.insert(LeaseKey::from(&outcome), outcome);
    }

    /// Removes an acknowledged outcome.
    pub fn acknowledge(&mut self, key: LeaseKey) {
        while self.removals.try_join_next().is_some() {}
        if self.outcomes.remove(&key).is_none() {
            return;
        }
        let folder = Arc::clone(&self.writer.folder);
        self.removals.spawn_blocking(move || {
            if let Err(error) = folder.remove(key) {
                // The leftover file does no harm. After the next start the agent reports the
                // outcome again, and the scheduler acknowledges it again.
                tracing::warn!(task.id = key.task_id, token = key.token, %error,
                    "cannot remove an acknowledged outcome from the disk");
            }
        });
    }

    /// Returns once the files of all acknowledged outcomes are removed.
    pub async fn removed(&mut self) {
        while self.removals.join_next().await.is_some() {}
    }

    pub fn check_space(&mut self) {
        self.disk.begin();
    }

    /// Waits for the end of the current check of the disk. If no check is running, waits forever.
    /// Cancel-safe.
    pub async fn space_checked(&mut self) {
        self.disk.ended().await;
    }

    /// Why the agent should take no lease, in one sentence. `None` if outcomes can be written and
    /// the last check found enough free space.
    pub fn paused(&mut self) -> Option<String> {
        let failure = self.writer.failure();
        let folder = self.writer.path().display();
        let reason = match failure {
            Some(failure) => Some(format!("outcomes cannot be written to {folder}: {failure}")),
            None => self.disk.paused(),
        };
        reason.map(|reason| reason.replace(['\n', '\r'], " "))
    }

    pub fn get(&self, key: LeaseKey) -> Option<&OutcomeReport> {
        self.outcomes.get(&key)
    }

    pub fn keys(&self) -> impl Iterator<Item = LeaseKey> {
        self.outcomes.keys().copied()
    }

    pub fn offers(&self) -> impl Iterator<Item = &OutcomeReport> {
        self.outcomes.values()
    }

    pub fn len(&self) -> usize {
        self.outcomes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }
}

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
struct OutboxFolder {
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

fn name(LeaseKey { task_id, token, history }: LeaseKey, ending: &str) -> String {
    match history {
        // As older agents name their files.
        0 => format!("{task_id}-{token}.{ending}"),
        _ => format!("{task_id}-{token}-{history}.{ending}"),
    }
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

/// Delay before the next attempt after a failed write.
const RETRY: Duration = Duration::from_secs(1);

/// Writes outcomes to the disk. The writer can be used from any tokio task.
#[derive(Debug, Clone)]
pub struct OutcomeWriter {
    folder: Arc<OutboxFolder>,
    /// The error of the last write, if it failed. This lock is never held across an await.
    failure: Arc<Mutex<Option<String>>>,
}

impl OutcomeWriter {
    fn new(folder: OutboxFolder) -> Self {
        Self { folder: Arc::new(folder), failure: Arc::default() }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The error of the last write, if it failed.
    fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes an outcome, and retries until it is on the disk. Returns `None` if `closing` is
    /// cancelled first.
    pub async fn keep(&self, outcome: OutcomeReport, closing: &CancellationToken) -> Option<OutcomeReport> {
        loop {
            match self.write(&outcome).await {
                Ok(()) => return Some(outcome),
                Err(error) => self.failed(&error),
            }
            tokio::select! {
                () = closing.cancelled() => return None,
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    async fn write(&self, outcome: &OutcomeReport) -> io::Result<()> {
        let (folder, outcome) = (Arc::clone(&self.folder), outcome.clone());
        blocking(move || folder.write(&outcome)).await?;
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    fn failed(&self, error: &io::Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.is_none() {
            tracing::error!(%error, folder = %self.folder.path().display(),
                "cannot write an outcome to the disk; the agent tries again");
        }
        *failure = Some(error.to_string());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn outcome(task_id: i64, token: i64) -> OutcomeReport {
        OutcomeReport { task_id, token, pages: 7, ..OutcomeReport::default() }
    }

    fn open(folder: &Path) -> Outbox {
        Outbox::open(folder, 0).unwrap()
    }

    async fn keep(outbox: &mut Outbox, outcome: OutcomeReport) {
        let kept = outbox.writer().keep(outcome, &CancellationToken::new()).await.unwrap();
        outbox.put(kept);
    }

    #[tokio::test]
    async fn outcomes_with_the_same_numbers_in_two_histories_are_kept_apart() {
        let folder = tempfile::tempdir().unwrap();
        let mut outbox = open(folder.path());
        let outcomes = [0, 5, 6].map(|history| OutcomeReport { history, ..outcome(1, 1) });
        for outcome in &outcomes {
            keep(&mut outbox, outcome.clone()).await;
        }
        outbox.acknowledge(LeaseKey::from(&outcomes[1]));
        outbox.removed().await;
        drop(outbox);
        assert_eq!(open(folder.path()).offers().collect::<Vec<_>>(), [&outcomes[0], &outcomes[2]]);
    }

    #[tokio::test]
    async fn an_outcome_survives_its_process_until_its_lease_is_acknowledged() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = open(folder.path());
        keep(&mut first, outcome(1, 2)).await;
        keep(&mut first, outcome(3, 1)).await;
        first.acknowledge(LeaseKey { task_id: 1, token: 1, history: 0 });
        first.acknowledge(LeaseKey { task_id: 3, token: 1, history: 0 });
        first.removed().await;
        drop(first);

        let mut second = open(folder.path());
        assert_eq!(second.offers().collect::<Vec<_>>(), [&outcome(1, 2)]);
        second.acknowledge(LeaseKey { task_id: 1, token: 2, history: 0 });
        assert!(second.is_empty());
        second.removed().await;
        drop(second);
        assert!(open(folder.path()).is_empty());
    }

    #[tokio::test]
    async fn an_outcome_that_cannot_be_written_is_retried_before_it_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let outcomes = folder.path().join("outbox");
        let mut outbox = open(&outcomes);
        assert_eq!(outbox.paused(), None);
        // The folder disappears while the agent runs, as when its disk is unmounted.
        let away = folder.path().join("away");
        fs::rename(&outcomes, &away).unwrap();
        let (writer, closing) = (outbox.writer(), CancellationToken::new());
        let mut keeping = std::pin::pin!(writer.keep(outcome(1, 1), &closing));
        let paused = loop {
            tokio::select! {
                biased;
                _ = &mut keeping => panic!("it was not kept anywhere"),
                () = tokio::task::yield_now() => {}
            }
            let failed = writer.failure().is_some();
            if failed {
                break outbox.paused().unwrap();
            }
        };
        assert!(paused.starts_with("outcomes cannot be written to "), "{paused}");
        fs::rename(&away, &outcomes).unwrap();
        let kept = keeping.await.unwrap();
        assert_eq!((kept, outbox.paused()), (outcome(1, 1), None));
        assert_eq!(fs::read_dir(&outcomes).unwrap().count(), 2, "the outcome, and the lock");
    }

    #[tokio::test]
    async fn an_agent_that_closes_does_not_wait_for_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let outcomes = folder.path().join("outbox");
        let outbox = open(&outcomes);
        fs::remove_dir_all(&outcomes).unwrap();
        let closing = CancellationToken::new();
        closing.cancel();
        assert_eq!(outbox.writer().keep(outcome(1, 1), &closing).await, None);
    }

    #[test]
    fn two_agents_do_not_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let first = open(folder.path());
        let refused = Outbox::open(folder.path(), 0).unwrap_err().to_string();
        assert!(refused.starts_with("another process uses ") && refused.contains("set outbox.folder"), "{refused}");
        drop(first);
        open(folder.path());
    }

    #[test]
    fn an_invalid_outcome_is_set_aside_and_an_unfinished_one_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("1-1.outcome"), [0xff; 9]).unwrap();
        fs::write(path("2-2.outcome"), prost::Message::encode_to_vec(&outcome(5, 5))).unwrap();
        fs::write(path("3-3.new"), "half").unwrap();
        fs::write(path("4-4.outcome"), prost::Message::encode_to_vec(&outcome(4, 4))).unwrap();
        let outbox = open(folder.path());
        assert_eq!(outbox.keys().collect::<Vec<_>>(), [LeaseKey { task_id: 4, token: 4, history: 0 }]);
        assert!(path("1-1.unreadable").exists() && path("2-2.unreadable").exists() && !path("3-3.new").exists());
    }

    #[test]
    fn a_full_disk_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let paused = Outbox::open(folder.path(), u64::MAX).unwrap().paused().unwrap();
        assert!(paused.contains("disk full: ") && paused.contains(" MiB free, crawling resumes at "), "{paused}");
    }
}
