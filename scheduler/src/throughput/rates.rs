//! Converts crawled amounts to rates per minute, and bounds the times that are reported.

use std::time::Duration;

/// The time over which a batch's present crawl rate is averaged. In this time, even a fleet of a
/// few agents finishes several crawls.
pub const RATE_WINDOW: Duration = Duration::from_secs(300);
/// Maximum remaining time reported. Longer times make no difference to an operator's plans.
pub(super) const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);
pub const BYTES_PER_MEGABYTE: f64 = 1e6;
const SECONDS_PER_MINUTE: f64 = 60.0;

/// Converts an amount of bytes to megabytes per minute; `None` for a time of zero.
pub fn megabytes_per_minute(bytes: u64, time: Duration) -> Option<f64> {
    per_minute(count(bytes) / BYTES_PER_MEGABYTE, time)
}

/// Converts an amount to an amount per minute; `None` for a time of zero.
pub fn per_minute(amount: f64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| amount / time.as_secs_f64() * SECONDS_PER_MINUTE)
}

/// Converts seconds to a duration of at most [`LONGEST`].
pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST)
}

/// The conversion is exact up to 2^53, which no real count reaches.
pub(super) fn count(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_has_no_rate() {
        assert_eq!(megabytes_per_minute(5, Duration::ZERO), None);
        assert_eq!(megabytes_per_minute(1_000_000, Duration::from_secs(30)), Some(2.0));
    }
}
