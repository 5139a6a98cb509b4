//! Measures how long a crawl has taken.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::machine::clock;

/// Measures how long a crawl has taken, including the time before it was stopped and resumed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch {
    pub(super) began: Instant,
    pub(super) before: Duration,
    resumed_at: SystemTime,
}

impl Stopwatch {
    /// Starts the stopwatch. `before` is how long the crawl had taken when it was stopped; zero for
    /// a new crawl.
    pub(super) fn after(before: Duration) -> Self {
        Self { began: Instant::now(), before, resumed_at: clock::wall() }
    }

    /// The time at which the crawl would have begun if it had never been stopped.
    pub(super) fn started_at(self) -> SystemTime {
        self.resumed_at.checked_sub(self.before).unwrap_or(self.resumed_at)
    }

    pub(super) fn elapsed(self) -> Duration {
        self.before.saturating_add(self.began.elapsed())
    }
}

pub(super) fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
