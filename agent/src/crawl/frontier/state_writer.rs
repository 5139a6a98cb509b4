//! Writes a running crawl's state to this agent's disk, so that the crawl can resume after a
//! restart; pages are stored first. Reports checkpoints to the scheduler, so that another agent can
//! resume the crawl.

use std::io;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::sleep;

use super::checkpoint::{self, Checkpoint};
use super::checkpoint_schedule::CheckpointSchedule;
use super::log::{CrawlTotals, LogFrame};
use super::paths_to_visit::Frontier;
use crate::crawl::politeness::RateState;
use crate::disk::folder::blocking;
use crate::warc::Recorder;

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

impl Frontier {
    /// After this call, a visited path is recorded in the log only after its pages are stored.
    pub(in crate::crawl) fn store_first(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
    }

    /// Writes the crawl's totals without ending the current visit.
    pub(in crate::crawl) async fn note_totals(&mut self) -> io::Result<()> {
        self.push(&LogFrame { totals: *self.known.totals(), ..LogFrame::default() });
        self.write().await
    }

    /// Whether the frames in memory should be written before the crawl continues.
    pub(in crate::crawl) fn is_due(&self) -> bool {
        self.queue.is_due()
    }

    /// Writes the frames that are only in memory. May be called again after an error or a
    /// cancellation.
    pub(in crate::crawl) async fn write(&mut self) -> io::Result<()> {
        if let Some(recorder) = &self.recorder {
            // Store the pages first, because a page that counts as visited is never fetched again.
            recorder.stored().await?;
        }
        self.queue.write().await
    }

    /// The state after the last frame, for another agent. The visited pages are synced to the disk
    /// first, because no agent fetches them again, even after a crash of this machine.
    pub(in crate::crawl) async fn checkpoint(&mut self) -> io::Result<Checkpoint> {
        self.write().await?;
        if let Some(recorder) = &self.recorder {
            recorder.synced().await?;
        }
        self.queue.sync().await?;
        let (reader, log_points, hosts) = (self.queue.reader(), self.log_points.clone(), self.hosts().clone());
        let (checkpoint, size) = blocking(move || checkpoint::encode(&reader, &log_points, &hosts)).await?;
        self.log_points.size = size;
        Ok(checkpoint)
    }
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
