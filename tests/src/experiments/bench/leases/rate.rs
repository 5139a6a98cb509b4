//! Computes how many events happen per second.

use std::time::Instant;

/// The number of events per second, if `count` events have happened since this time.
pub(super) fn rate(count: u64, since: Instant) -> f64 {
    int(count).unwrap_or_default() / since.elapsed().as_secs_f64()
}

/// Converts a count to a float. Fails if the count is too large.
pub(super) fn int(count: u64) -> anyhow::Result<f64> {
    Ok(f64::from(u32::try_from(count)?))
}
