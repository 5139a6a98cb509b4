//! Computes the cost of a plan: a sum of fourth powers of times in seconds.

use std::time::Duration;

/// The longest time of a job whose cost is at most `cost`: the fourth root of `cost`, because a job
/// costs at least the fourth power of its time. The result is slightly greater than this root,
/// because floats are not exact. Comparing a job's time with this result rejects most agents
/// without computing costs.
pub(super) fn affordable(cost: f64) -> Duration {
    Duration::try_from_secs_f64(cost.max(0.0).sqrt().sqrt() * 1.000_001).unwrap_or(Duration::MAX)
}

pub(super) fn fourth_power(value: f64) -> f64 {
    let square = value * value;
    square * square
}
