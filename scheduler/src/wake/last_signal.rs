//! Remembers when the last signal of any kind came, which shows whether the system is active.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The time of the last signal of any kind, which shows whether the system is active.
#[derive(Debug)]
pub(super) struct LastSignal {
    began: Instant,
    /// Milliseconds after `began`, rounded up, so that a signal never seems older than it is.
    last: AtomicU64,
}

impl Default for LastSignal {
    fn default() -> Self {
        Self { began: Instant::now(), last: AtomicU64::new(0) }
    }
}

impl LastSignal {
    pub(super) fn note(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis() + 1).unwrap_or(u64::MAX);
        self.last.fetch_max(now, Ordering::Relaxed);
    }

    pub(super) fn quiet_for(&self) -> Duration {
        self.began.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}
