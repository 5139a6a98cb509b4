//! Computes the maximum lifetime of an order from its samples.

use std::time::Duration;

/// Time allowed for an order in addition to its samples, because messages take time and the agent
/// may be busy.
const ORDER_SLACK: Duration = Duration::from_secs(10);

/// Number of requests of an order that are not samples: one opens the connection, and one follows a
/// redirect.
const EXTRA_REQUESTS: u32 = 2;

/// Maximum lifetime of an order. Each request may take its whole interval and time-out.
pub(in crate::jobs) fn order_lifetime(samples: u32, interval: Duration, timeout: Duration) -> Duration {
    (interval + timeout) * samples.saturating_add(EXTRA_REQUESTS) + ORDER_SLACK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_may_use_every_time_out_before_it_is_given_up() {
        let lifetime = order_lifetime(5, Duration::from_secs(1), Duration::from_secs(5));
        assert_eq!(lifetime, Duration::from_secs(7 * 6 + 10));
    }
}
