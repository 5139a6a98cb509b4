//! Keeps the time until which a crawl sends no requests, and lengthens each pause at random.

use std::time::Duration;

use rand::{Rng, RngExt};
use tokio::time::Instant;

/// Maximum pause between two requests. A longer pause would exceed the time limit of any ordinary
/// crawl, and might exceed the clock's range.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(86_400);
/// Maximum random extension of a pause, as a fraction of the pause. The random extension spreads
/// out crawls that were refused at the same time.
pub(super) const JITTER: f64 = 0.1;

/// The current pause of a crawl, if any.
#[derive(Debug, Default)]
pub(super) struct Pause {
    pub(super) until: Option<Instant>,
}

impl Pause {
    /// Makes a pause that ends `pause` after `now`.
    pub(super) fn restored(pause: Duration, now: Instant) -> Self {
        Self { until: (!pause.is_zero()).then(|| now + pause.min(LONGEST_PAUSE)) }
    }

    /// The remaining time of the pause; zero if there is none.
    pub(super) fn remaining(&self, now: Instant) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    pub(super) fn is_active(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until > now)
    }

    /// Permits no request until `pause` and its random extension are over. Never shortens a longer
    /// pause.
    pub(super) fn extend(&mut self, now: Instant, pause: Duration, rng: &mut impl Rng) {
        let pause = pause.min(LONGEST_PAUSE).mul_f64(1.0 + rng.random_range(0.0..=JITTER));
        let until = now + pause;
        self.until = Some(self.until.map_or(until, |other| other.max(until)));
    }
}
