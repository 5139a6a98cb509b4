//! Opens a crawl's circuit breaker after too many consecutive errors, which ends the crawl.

/// Number of consecutive errors that opens the breaker.
pub(in crate::crawl) const BREAKER: u32 = 50;

#[derive(Debug, Default)]
pub(super) struct CircuitBreaker {
    pub(super) in_a_row: u32,
    /// The number of consecutive errors before the newest response.
    in_a_row_before: u32,
}

impl CircuitBreaker {
    /// Records whether the newest response is an error.
    pub(super) const fn record(&mut self, badly: bool) {
        self.in_a_row_before = self.in_a_row;
        self.in_a_row = if badly { self.in_a_row.saturating_add(1) } else { 0 };
    }

    /// Records that the newest response, which was recorded as good, is an error after all.
    pub(super) const fn broke_off(&mut self) {
        self.in_a_row = self.in_a_row_before.saturating_add(1);
    }

    pub(super) const fn is_open(&self) -> bool {
        self.in_a_row >= BREAKER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_consecutive_errors_open_the_breaker() {
        let mut breaker = CircuitBreaker::default();
        for _ in 1..BREAKER {
            breaker.record(true);
        }
        assert!(!breaker.is_open());
        breaker.record(false);
        (0..BREAKER).for_each(|_| breaker.record(true));
        assert!(breaker.is_open());
    }
}
