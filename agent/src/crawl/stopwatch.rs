//! Measures how long a crawl has taken, and decides when its time budget is spent.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::machine::clock;

/// Maximum duration, which the clock can represent.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Measures how long a crawl has taken, including the time before it was stopped and resumed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch {
    began: Instant,
    before: Duration,
    resumed_at: SystemTime,
}

impl Stopwatch {
    /// Starts the stopwatch. `before` is how long the crawl had taken when it was stopped; zero for
    /// a new crawl.
    pub(super) fn after(before: Duration) -> Self {
        Self { began: Instant::now(), before: before.min(YEAR), resumed_at: clock::wall() }
    }

    /// The time at which the crawl would have begun if it had never been stopped.
    pub(super) fn started_at(self) -> SystemTime {
        self.resumed_at.checked_sub(self.before).unwrap_or(self.resumed_at)
    }

    /// The time at which the crawl's time budget is spent.
    pub(super) fn deadline(self, max_duration: Duration) -> Instant {
        self.began + max_duration.min(YEAR).saturating_sub(self.before)
    }

    /// Counts a pause against the crawl's time budget, even though no agent has the lease
    /// meanwhile.
    pub(super) const fn count_pause(&mut self, pause: Duration) {
        self.before = self.before.saturating_add(pause);
    }

    pub(super) fn elapsed(self) -> Duration {
        self.before.saturating_add(self.began.elapsed())
    }
}

pub(super) fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
