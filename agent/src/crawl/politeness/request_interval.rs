//! Decides the minimum time between two requests to a site.
//!
//! The interval is the policy's `request_interval`, or the site's crawl-delay if that is longer.
//! The interval grows if the first bytes of responses arrive late, or if the scheduler is
//! disconnected.
//!
//! The larger the site is known to be, the closer the interval comes to the policy's
//! `shortest_interval`, if that is set. The reason: a load that is negligible for a server with a
//! hundred thousand pages may be too much for a server with ten.

use std::time::Duration;

use tokio::time::Instant;

use super::pause::LONGEST_PAUSE;

/// Maximum crawl-delay that is honoured. With a longer delay a crawl would be pointless.
const MAX_CRAWL_DELAY: Duration = Duration::from_secs(60);
/// A site with up to `SMALL` pages is small, and a site with at least `LARGE` pages is large.
/// `SMALL` and `LARGE` are not based on measurements. At one request per second, a site of 100
/// pages takes two minutes, and a site of 100,000 pages more than a day.
const SMALL: u64 = 100;
const LARGE: u64 = 100_000;
/// A site counts as slow if its mean time to first byte is at least this long. The interval between
/// requests to a slow site is at least twice its mean time to first byte.
const SLOW: Duration = Duration::from_secs(1);
/// Factor by which the interval grows while the scheduler is disconnected, because the scheduler
/// can then neither slow the crawl down nor end its lease.
const SILENT_FACTOR: u32 = 2;
/// The weight of the newest time to first byte in the moving average.
const NEWEST: f64 = 0.2;

/// The minimum time between two requests to a site of this many pages. The time is `slow` for a
/// small site or a site of unknown size, and `fast` for a large site. For other sites, the time is
/// interpolated between `slow` and `fast` by the logarithm of the number of pages.
fn interval_of(pages: Option<u64>, slow: Duration, fast: Duration) -> Duration {
    let Some(pages) = pages.filter(|_| fast < slow) else { return slow };
    // An `f64` can represent every `u32`. Larger numbers are clamped, which changes nothing because
    // they are above `LARGE`.
    let log = |pages: u64| f64::from(u32::try_from(pages).unwrap_or(u32::MAX)).ln();
    let share = (log(pages.clamp(SMALL, LARGE)) - log(SMALL)) / (log(LARGE) - log(SMALL));
    slow.saturating_sub((slow - fast).mul_f64(share.clamp(0.0, 1.0))).max(fast)
}

#[derive(Debug)]
pub(super) struct RequestInterval {
    /// The interval for a small site (`slow`) and the interval for a large site (`fast`).
    slow: Duration,
    fast: Duration,
    /// Number of the site's pages, if known.
    pages: Option<u64>,
    crawl_delay: Duration,
    /// The start of the newest request.
    pub(super) last_start: Option<Instant>,
    pub(super) scheduler_silent: bool,
    /// The moving average of the time to first byte, in seconds.
    first_byte: f64,
}

impl RequestInterval {
    /// The interval of a site, whatever the site's size.
    pub(super) fn new(interval: Duration) -> Self {
        let slow = interval.min(LONGEST_PAUSE);
        Self {
            slow,
            fast: slow,
            pages: None,
            crawl_delay: Duration::ZERO,
            last_start: None,
            scheduler_silent: false,
            first_byte: 0.0,
        }
    }

    /// Sets the interval for large sites: `shortest`, or the interval for small sites if that is
    /// shorter.
    pub(super) fn down_to(&mut self, shortest: Duration) {
        self.fast = shortest.min(self.slow);
    }

    /// Records that the site has at least this many pages.
    pub(super) fn learn_size(&mut self, pages: u64) {
        self.pages = self.pages.max(Some(pages));
    }

    /// Honours a crawl-delay if it is longer than the interval.
    pub(super) fn slow_down(&mut self, crawl_delay: Duration) {
        self.crawl_delay = self.crawl_delay.max(crawl_delay.min(MAX_CRAWL_DELAY));
    }

    pub(super) fn record_first_byte(&mut self, first_byte: Duration) {
        self.first_byte += NEWEST * (first_byte.as_secs_f64() - self.first_byte);
    }

    /// The time at which the interval since the start of the newest request is over; not before
    /// `now`.
    pub(super) fn next_start(&self, now: Instant) -> Instant {
        self.last_start.map_or(now, |last| now.max(last + self.current()))
    }

    /// The minimum time between two requests.
    pub(super) fn current(&self) -> Duration {
        let interval = interval_of(self.pages, self.slow, self.fast).max(self.crawl_delay);
        let interval = if self.scheduler_silent { interval * SILENT_FACTOR } else { interval };
        interval.max(self.trouble())
    }

    /// Minimum time between requests to a slow site; zero if the site is not slow.
    fn trouble(&self) -> Duration {
        let twice = Duration::try_from_secs_f64(2.0 * self.first_byte).unwrap_or(LONGEST_PAUSE);
        if twice >= 2 * SLOW { twice } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn the_interval_follows_the_logarithm_of_the_size() {
        let of = |pages| interval_of(pages, ms(1000), ms(100));
        for small in [None, Some(0), Some(1), Some(100)] {
            assert_eq!(of(small), ms(1000), "{small:?}");
        }
        for (pages, millis) in [(1000, 700), (10_000, 400), (100_000, 100), (u64::MAX, 100)] {
            let interval = of(Some(pages));
            assert!(interval.abs_diff(ms(millis)) < ms(1), "{pages}: {interval:?}");
        }
        assert_eq!(
            interval_of(Some(u64::MAX), ms(100), ms(1000)),
            ms(100),
            "a contradiction makes nothing faster, nor slower"
        );
    }

    #[test]
    fn a_crawl_delay_only_slows_down_and_is_capped() {
        let mut interval = RequestInterval::new(ms(100));
        interval.slow_down(ms(20));
        assert_eq!(interval.current(), ms(100));
        interval.slow_down(ms(700));
        assert_eq!(interval.current(), ms(700));
        interval.slow_down(Duration::from_secs(86_400));
        assert_eq!(interval.current(), MAX_CRAWL_DELAY);
    }

    #[test]
    fn late_first_bytes_lengthen_the_interval() {
        let mut interval = RequestInterval::new(ms(500));
        (0..30).for_each(|_| interval.record_first_byte(ms(400)));
        assert_eq!(interval.current(), ms(500));
        (0..30).for_each(|_| interval.record_first_byte(ms(4000)));
        assert!((ms(7900)..ms(8000)).contains(&interval.current()), "{:?}", interval.current());
        (0..30).for_each(|_| interval.record_first_byte(ms(100)));
        assert_eq!(interval.current(), ms(500));
    }

    proptest! {
        #[test]
        fn a_larger_site_never_gets_a_longer_interval_and_all_stay_within_the_bounds(
            (one, other) in (0_u64..1 << 40, 0_u64..200_000), slow in 0_u64..100_000, fast in 0_u64..100_000,
        ) {
            let of = |pages| interval_of(Some(pages), ms(slow), ms(fast));
            prop_assert!(of(one.max(other)) <= of(one.min(other)));
            prop_assert!(of(one) <= ms(slow) && of(one) >= ms(fast.min(slow)));
        }
    }
}
