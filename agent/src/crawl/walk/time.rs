//! Measures how long a crawl has taken, and decides for which pauses the crawl is returned to the
//! scheduler.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{Walk, WalkEnd};

/// Minimum pause for which a crawl is returned to the scheduler. Shorter pauses are not worth a
/// handover, which takes a few seconds.
pub(in crate::crawl) const MIN_HANDED_BACK_PAUSE: Duration = Duration::from_secs(30);

/// Whether a pause is long enough to free the slot, and ends before the crawl's deadline.
fn is_worth_handing_back(pause: Duration, deadline: Instant) -> bool {
    pause >= MIN_HANDED_BACK_PAUSE && Instant::now() + pause < deadline
}

/// Measures how long a crawl has taken, including the time before it was stopped and resumed.
#[derive(Debug, Clone, Copy)]
pub(in crate::crawl) struct Stopwatch {
    pub(in crate::crawl) began: Instant,
    pub(in crate::crawl) before: Duration,
}

impl Stopwatch {
    /// Starts the stopwatch. The crawl took `before` until it was stopped; zero for a new crawl.
    pub(in crate::crawl) fn after(before: Duration) -> Self {
        Self { began: Instant::now(), before }
    }

    pub(in crate::crawl) fn elapsed(self) -> Duration {
        self.before.saturating_add(self.began.elapsed())
    }
}

impl Walk<'_> {
    /// Returns `WalkEnd::Paused` if the site requires a long pause.
    pub(super) fn check_pause(&self) -> Result<(), WalkEnd> {
        let pause = self.fetcher.politeness_state().pause;
        match self.hands_back_before {
            Some(deadline) if is_worth_handing_back(pause, deadline) => Err(WalkEnd::Paused(pause)),
            _ => Ok(()),
        }
    }
}

pub(super) fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
