//! Writes outcomes to the disk, and tries again after a failed write.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use landfall_proto::v1::OutcomeReport;
use tokio_util::sync::CancellationToken;

use super::folder::blocking;
use super::outbox_folder::OutboxFolder;

/// Delay before the next attempt after a failed write.
const RETRY: Duration = Duration::from_secs(1);

/// Writes outcomes to the disk. The writer can be used from any tokio task.
#[derive(Debug, Clone)]
pub struct OutcomeWriter {
    pub(super) folder: Arc<OutboxFolder>,
    /// The error of the last write, if it failed. This lock is never held across an await.
    failure: Arc<Mutex<Option<String>>>,
}

impl OutcomeWriter {
    pub(super) fn new(folder: OutboxFolder) -> Self {
        Self { folder: Arc::new(folder), failure: Arc::default() }
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The error of the last write, if it failed.
    pub(super) fn failure(&self) -> Option<String> {
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
