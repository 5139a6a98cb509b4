//! When the next request to a site may start.
//!
//! Pure. One pacer belongs to one crawl, and everything the crawl sends passes through it, robots.txt included. The
//! crawl is sequential besides, so a request also waits for the answer to the one before it.

use std::time::Duration;

use tokio::time::Instant;

/// The longest crawl-delay that is honoured; a longer one would make a crawl pointless, not polite.
pub(super) const MAX_CRAWL_DELAY: Duration = Duration::from_secs(60);

/// The longest pause between two requests: what is longer ends a crawl as surely, and a clock must hold it.
const LONGEST_INTERVAL: Duration = Duration::from_secs(86_400);

/// Keeps the starts of a site's requests apart.
#[derive(Debug)]
pub(super) struct Pacer {
    interval: Duration,
    last_start: Option<Instant>,
}

impl Pacer {
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval: interval.min(LONGEST_INTERVAL), last_start: None }
    }

    /// Honours a crawl-delay: the larger of it and the interval counts.
    pub(super) fn slow_down(&mut self, crawl_delay: Duration) {
        self.interval = self.interval.max(crawl_delay.min(MAX_CRAWL_DELAY));
    }

    /// When the next request may start; not before `now`.
    pub(super) fn next_start(&self, now: Instant) -> Instant {
        self.last_start.map_or(now, |last| now.max(last + self.interval))
    }

    /// Notes that a request starts.
    pub(super) const fn start(&mut self, now: Instant) {
        self.last_start = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn starts_are_an_interval_apart() {
        let begin = Instant::now();
        let mut pacer = Pacer::new(ms(100));
        assert_eq!(pacer.next_start(begin), begin);
        pacer.start(begin);
        assert_eq!(pacer.next_start(begin + ms(30)), begin + ms(100));
        assert_eq!(pacer.next_start(begin + ms(130)), begin + ms(130));
    }

    #[test]
    fn a_pause_that_no_clock_holds_is_cut() {
        let begin = Instant::now();
        let mut pacer = Pacer::new(Duration::MAX);
        pacer.start(begin);
        assert_eq!(pacer.next_start(begin), begin + LONGEST_INTERVAL);
    }

    #[test]
    fn a_crawl_delay_only_slows_down_and_is_capped() {
        let begin = Instant::now();
        let mut pacer = Pacer::new(ms(100));
        pacer.start(begin);
        pacer.slow_down(ms(20));
        assert_eq!(pacer.next_start(begin), begin + ms(100));
        pacer.slow_down(ms(700));
        assert_eq!(pacer.next_start(begin), begin + ms(700));
        pacer.slow_down(Duration::from_secs(86_400));
        assert_eq!(pacer.next_start(begin), begin + MAX_CRAWL_DELAY);
    }
}
