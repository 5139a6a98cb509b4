//! Writes a running crawl's state to this agent's disk, so that the crawl can resume after a
//! restart. Reports checkpoints to the scheduler, so that another agent can resume the crawl.

use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::sleep;

use super::checkpoint::Checkpoint;
use super::checkpoint_schedule::CheckpointSchedule;
use super::{CrawlTotals, Frontier};
use crate::crawl::politeness::RateState;

/// Delay before the next attempt after a failed write.
const RETRY: Duration = Duration::from_secs(1);

/// An agent's report to the scheduler about an unfinished crawl.
#[derive(Debug, Clone)]
pub struct CrawlSnapshot {
    pub checkpoint: Checkpoint,
    pub rate_state: RateState,
    /// The newest error; empty if there is none.
    pub last_error: String,
}

/// Receives the reports of a crawl. Must not block.
pub type SnapshotSink = Box<dyn Fn(CrawlSnapshot) + Send + Sync>;

/// The progress of a crawl, for display.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CrawlProgress {
    pub pages: u32,
    pub bytes: u64,
    pub queued: u64,
    pub errors: u32,
    /// End of the current pause, if any.
    pub paused_until: Option<SystemTime>,
}

pub(in crate::crawl) struct StateWriter {
    on_snapshot: Option<SnapshotSink>,
    checkpoint_schedule: CheckpointSchedule,
    failing: bool,
    progress: Option<watch::Sender<CrawlProgress>>,
}

impl StateWriter {
    pub(super) fn new(on_snapshot: Option<SnapshotSink>, progress: Option<watch::Sender<CrawlProgress>>) -> Self {
        Self { on_snapshot, checkpoint_schedule: CheckpointSchedule::new(), failing: false, progress }
    }

    /// Writes the frontier if that is due. Call this after every visit and every sitemap. A failed
    /// write is retried until it succeeds; the crawl waits meanwhile.
    pub(in crate::crawl) async fn step(&mut self, frontier: &mut Frontier) {
        while frontier.is_due() {
            match frontier.write().await {
                Ok(()) => self.failing = false,
                Err(error) => {
                    if !self.failing {
                        tracing::error!(%error, "cannot write a crawl's state to the disk; the crawl waits");
                    }
                    self.failing = true;
                    sleep(RETRY).await;
                }
            }
        }
    }

    pub(in crate::crawl) fn show(&self, totals: &CrawlTotals, queued: u64) {
        if let Some(progress) = &self.progress {
            let CrawlTotals { pages, bytes, errors, paused_until_unix_ms, .. } = *totals;
            let until = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(paused_until_unix_ms));
            let paused_until = until.filter(|_| paused_until_unix_ms > 0);
            progress.send_replace(CrawlProgress { pages, bytes, queued, errors, paused_until });
        }
    }

    /// Whether to report to the scheduler now.
    pub(in crate::crawl) fn is_due(&mut self, paused: bool) -> bool {
        let due = self.checkpoint_schedule.is_due(paused);
        self.on_snapshot.is_some() && due
    }

    pub(in crate::crawl) fn report(&mut self, snapshot: CrawlSnapshot) {
        if let Some(on_snapshot) = &self.on_snapshot {
            on_snapshot(snapshot);
            self.checkpoint_schedule.note_report();
        }
    }
}
