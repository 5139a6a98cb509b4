//! The delay before another attempt. Pure.
//!
//! The delay doubles from a floor to a ceiling. Each is drawn at random between half of it and the
//! whole, so that a fleet that was disconnected at one moment does not reconnect at one moment.

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

    /// The next delay; the one after it is twice as long.
    pub fn wait(&mut self, rng: &mut impl Rng) -> Duration {
        let whole = self.next;
        self.next = whole.saturating_mul(2).min(self.ceiling);
        whole.mul_f64(rng.random_range(0.5..=1.0))
    }

    /// Starts at the floor again, after a success.
    pub const fn reset(&mut self) {
        self.next = self.floor;
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

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
