//! Decides when a running crawl reports a checkpoint to the scheduler.

use std::time::Duration;

use tokio::time::Instant;

/// Interval between checkpoints of a crawl. If an agent is lost, the next agent repeats at most the
/// part of the crawl since the last checkpoint.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);

pub(super) struct CheckpointSchedule {
    /// The time of the last report, or of the crawl's start.
    reported_at: Instant,
    /// Whether the crawl was paused at the last call of `is_due`.
    paused: bool,
}

impl CheckpointSchedule {
    /// The schedule of a crawl that starts now.
    pub(super) fn new() -> Self {
        Self { reported_at: Instant::now(), paused: false }
    }

    /// Whether a report is due. Reports are due once a minute, and also when a pause begins,
    /// because a paused crawl sends no reports.
    pub(super) fn is_due(&mut self, paused: bool) -> bool {
        let begins = paused && !std::mem::replace(&mut self.paused, paused);
        self.paused = paused;
        begins || self.reported_at.elapsed() >= CHECKPOINT_EVERY
    }

    pub(super) fn note_report(&mut self) {
        self.reported_at = Instant::now();
    }
}
