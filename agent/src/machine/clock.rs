//! The agent's clocks. Round trips are timed with `Instant`. The deadline of leases uses the boot
//! clock, which continues while the machine is suspended. The wall clock is only for timestamps.
//! Times of different clocks must never be mixed.

use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

/// A time on the boot clock (CLOCK_BOOTTIME).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(Duration);

impl BootTime {
    pub fn now() -> Self {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("Linux has had this clock since 2.6.39");
        Self(Duration::from(now))
    }

    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration))
    }

    /// The time from `now` until this time; zero if this time has passed.
    pub fn remaining(self, now: Self) -> Duration {
        self.0.saturating_sub(now.0)
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub fn wall() -> SystemTime {
    SystemTime::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_past_moment_has_no_time_remaining() {
        let now = BootTime::now();
        assert_eq!(now.after(Duration::from_secs(3)).remaining(now), Duration::from_secs(3));
        assert_eq!(now.remaining(now.after(Duration::from_secs(3))), Duration::ZERO);
        assert!(BootTime::now() >= now);
    }
}
