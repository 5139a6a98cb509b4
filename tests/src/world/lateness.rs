//! Records how late the emulated network wakes tasks and delivers packets, in a histogram with an
//! upper limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const BUCKET: Duration = Duration::from_micros(50);
/// Number of buckets. The last bucket contains all values of about 200 ms or more.
const BUCKETS: usize = 4000;

/// A histogram of the lateness of tokio tasks or packets.
#[derive(Debug)]
pub struct Lateness {
    buckets: Vec<AtomicU64>,
}

impl Default for Lateness {
    fn default() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Lateness {
    pub fn note(&self, late: Duration) {
        let bucket = usize::try_from(late.as_micros() / BUCKET.as_micros()).unwrap_or(usize::MAX);
        self.buckets[bucket.min(BUCKETS - 1)].fetch_add(1, Ordering::Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// The `share` quantile of the lateness, rounded up to the edge of a bucket. Zero if nothing
    /// was recorded.
    pub fn quantile(&self, share: f64) -> Duration {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let total: u64 = counts.iter().sum();
        let mut seen = 0;
        for (edge, count) in (1_u32..).zip(&counts) {
            seen += count;
            if total > 0 && precise(seen) >= share * precise(total) {
                return BUCKET * edge;
            }
        }
        Duration::ZERO
    }
}

/// Converts a count to a float. Counts above 2^32 saturate.
fn precise(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::from(u32::MAX), f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_buckets_upper_edge() {
        let lateness = Lateness::default();
        for micros in [10, 10, 10, 990] {
            lateness.note(Duration::from_micros(micros));
        }
        assert_eq!(lateness.quantile(0.5), Duration::from_micros(50));
        assert_eq!(lateness.quantile(1.0), Duration::from_micros(1000));
        lateness.note(Duration::from_secs(9));
        assert_eq!(lateness.quantile(1.0), Duration::from_millis(200));
    }
}
