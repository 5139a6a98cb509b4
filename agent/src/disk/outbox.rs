//! Stores outcomes until the scheduler has acknowledged them.
//!
//! An outcome is written to the disk before the agent reports it, and is removed only after the
//! scheduler has acknowledged it. So an outcome survives lost sessions, restarts and a `kill -9`,
//! and every session reports it again. The agent takes no lease while too many outcomes are
//! unacknowledged. So a scheduler that grants leases but never acknowledges outcomes cannot fill
//! the memory or the disk. While the disk is full, the agent takes no lease either
//! ([`Outbox::paused`]). The outbox never waits for the disk, so heartbeats continue even if the
//! disk hangs.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use landfall_proto::v1::OutcomeReport;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::disk::folder::{FolderError, blocking};
use crate::disk::lease_key::LeaseKey;
use crate::machine::full_disk::LimitedDisk;

mod folder;

use folder::OutboxFolder;

/// Delay before the next attempt after a failed write.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Outbox {
    writer: OutcomeWriter,
    outcomes: BTreeMap<LeaseKey, OutcomeReport>,
    disk: LimitedDisk,
    removals: JoinSet<()>,
}

/// Writes outcomes to the disk. The writer can be used from any tokio task.
#[derive(Debug, Clone)]
pub struct OutcomeWriter {
    folder: Arc<OutboxFolder>,
    /// The error of the last write, if it failed. This lock is never held across an await.
    failure: Arc<Mutex<Option<String>>>,
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
        let writer = OutcomeWriter { folder: Arc::new(locked), failure: Arc::default() };
        let disk = LimitedDisk::at(folder, min_free_bytes);
        Ok(Self { writer, outcomes, disk, removals: JoinSet::new() })
    }

    pub fn folder(&self) -> &Path {
        self.writer.folder.path()
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
        let failure = self.writer.failure.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let folder = self.writer.folder.path().display();
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

impl OutcomeWriter {
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
mod tests;
