//! Decides when the body of a response arrives too slowly.

use std::time::Duration;

use tokio::time::Instant;

/// Minimum average rate of a body in bytes per second, enforced after
/// [`super::Timeouts::slow_after`]. The slowest links on which sites are hosted have four times
/// this rate.
pub(super) const MIN_RATE: u64 = 1 << 10;

/// The time at which a body is too slow if no further bytes arrive: its average rate then falls
/// below the minimum. `received` is the number of bytes since the body `began`.
pub(super) fn too_slow_at(began: Instant, received: u64, slow_after: Duration) -> Instant {
    let earned = Duration::from_millis(received.saturating_mul(1000) / MIN_RATE);
    began + earned.max(slow_after)
}
