//! The delay before the next attempt to connect to a scheduler. This module is pure.
//!
//! The delay doubles with each attempt, from a floor up to a ceiling. The actual delay is random,
//! from half of the computed delay to the whole delay, so that agents that were disconnected at the
//! same time do not reconnect at the same time.

use std::time::Duration;

use rand::{Rng, RngExt};

/// The first delay between two attempts to connect, before it is randomly shortened by up to half.
const RECONNECT_FLOOR: Duration = Duration::from_millis(250);
/// Maximum delay between two attempts to connect. All agents reconnect to a restarted scheduler
/// within this time, so that it can grant leases within ten seconds. At this delay (3.75 s on
/// average), a thousand disconnected agents make 270 attempts a second.
const RECONNECT_CEILING: Duration = Duration::from_secs(5);
/// The delay after an error that only the operator can fix. The delay is short in tests.
pub(super) const UNHURRIED: Duration = if cfg!(test) { Duration::from_millis(300) } else { Duration::from_secs(15) };

#[derive(Debug, Clone)]
pub struct Backoff {
    floor: Duration,
    ceiling: Duration,
    next: Duration,
}

impl Backoff {
    /// The delays of an agent that connects to its schedulers.
    pub const fn of_sessions() -> Self {
        Self::new(RECONNECT_FLOOR, RECONNECT_CEILING)
    }

    /// `floor` must be above zero, and at most `ceiling`.
    const fn new(floor: Duration, ceiling: Duration) -> Self {
        Self { floor, ceiling, next: floor }
    }

    /// Returns the delay before the next attempt, and doubles the delay for the attempt after that.
    pub fn wait(&mut self, rng: &mut impl Rng) -> Duration {
        let whole = self.next;
        self.next = whole.saturating_mul(2).min(self.ceiling);
        whole.mul_f64(rng.random_range(0.5..=1.0))
    }

    /// Resets the delay to the floor. Call it after a success.
    pub const fn reset(&mut self) {
        self.next = self.floor;
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::*;

    #[test]
    fn waits_double_to_the_ceiling_and_restart_after_a_reset() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, 8 * second);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for whole in [1, 2, 4, 8, 8, 8] {
            let wait = backoff.wait(&mut rng);
            assert!(wait >= whole * second / 2 && wait <= whole * second, "{wait:?} of {whole} s");
        }
        backoff.reset();
        assert!(backoff.wait(&mut rng) <= second);
    }
}
