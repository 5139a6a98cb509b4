//! The delay before the next attempt to connect. This module is pure.
//!
//! The delay doubles with each attempt, from a floor up to a ceiling. The actual delay is random,
//! between half of this value and the whole value. So agents that were disconnected at the same
//! moment do not reconnect at the same moment.

use std::time::Duration;

use rand::{Rng, RngExt};

#[derive(Debug, Clone)]
pub struct Backoff {
    floor: Duration,
    ceiling: Duration,
    next: Duration,
}

impl Backoff {
    /// `floor` must be above zero, and at most `ceiling`.
    pub const fn new(floor: Duration, ceiling: Duration) -> Self {
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
