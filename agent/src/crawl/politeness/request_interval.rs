//! Decides when the next request to a site may start, and whether the crawl must end, from all
//! rules of politeness. The first of them is the interval, the minimum time between two requests.
//!
//! The interval is the policy's `request_interval`, or the site's crawl-delay if that is longer.
//! The interval grows if the first bytes of responses arrive late, or if the scheduler is
//! disconnected.
//!
//! The larger the site is known to be, the closer the interval comes to the policy's
//! `shortest_interval`, if that is set. The reason: a load that is negligible for a server with a
//! hundred thousand pages may be too much for a server with ten.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

use super::pauses::{CircuitBreaker, ErrorWindow, LONGEST_PAUSE, Pause, Refusals, ResponseKind, WINDOW_PAUSE};
use crate::machine::clock::BootTime;

/// The rate state of a crawl. The numbers of refusals and errors and the pause survive a restart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RateState {
    /// Minimum time between the starts of two requests.
    pub interval: Duration,
    /// The remaining time of the pause; zero if there is none.
    pub pause: Duration,
    /// Number of times the site has refused a request (429, 503) since this count was last cleared.
    pub turned_away: u32,
    pub failed_in_a_row: u32,
    pub recent_requests: u32,
    /// Number of requests in the last minute that failed.
    pub recent_errors: u32,
}

#[derive(Debug)]
pub(in crate::crawl) struct Politeness {
    /// The interval for a small site (`slow`) and the interval for a large site (`fast`).
    slow: Duration,
    fast: Duration,
    /// Number of the site's pages, if known.
    pages: Option<u64>,
    crawl_delay: Duration,
    /// The start of the newest request.
    last_start: Option<Instant>,
    scheduler_silent: bool,
    /// The moving average of the time to first byte, in seconds.
    mean_first_byte: f64,
    pause: Pause,
    refusals: Refusals,
    window: ErrorWindow,
    breaker: CircuitBreaker,
}

impl Politeness {
    /// Makes requests start at least `interval` apart, whatever the site's size.
    pub(in crate::crawl) fn new(interval: Duration) -> Self {
        let slow = interval.min(LONGEST_PAUSE);
        Self {
            slow,
            fast: slow,
            pages: None,
            crawl_delay: Duration::ZERO,
            last_start: None,
            scheduler_silent: false,
            mean_first_byte: 0.0,
            pause: Pause::default(),
            refusals: Refusals::default(),
            window: ErrorWindow::default(),
            breaker: CircuitBreaker::default(),
        }
    }

    /// Sets the interval for large sites: `shortest`, or the interval for small sites if that is
    /// shorter.
    pub(in crate::crawl) fn down_to(mut self, shortest: Duration) -> Self {
        self.fast = shortest.min(self.slow);
        self
    }

    /// Records that the site has at least this many pages.
    pub(in crate::crawl) fn learn_size(&mut self, pages: u64) {
        self.pages = self.pages.max(Some(pages));
    }

    /// Sets whether the scheduler is disconnected.
    pub(in crate::crawl) const fn set_scheduler_silent(&mut self, scheduler_silent: bool) {
        self.scheduler_silent = scheduler_silent;
    }

    /// Restores the state that the crawl had when it was stopped.
    pub(in crate::crawl) fn restore(&mut self, state: RateState, now: Instant) {
        self.breaker.in_a_row = state.failed_in_a_row;
        self.refusals = Refusals::restored(state.turned_away, now);
        self.pause = Pause::restored(state.pause, now);
    }

    pub(in crate::crawl) fn rate_state(&self, now: Instant) -> RateState {
        let (recent_requests, recent_errors) = self.window.recent(now);
        RateState {
            interval: self.interval(),
            pause: self.pause.remaining(now),
            turned_away: self.refusals.count,
            failed_in_a_row: self.breaker.in_a_row,
            recent_requests,
            recent_errors,
        }
    }

    pub(in crate::crawl) fn is_paused(&self, now: Instant) -> bool {
        self.pause.is_active(now)
    }

    /// Honours a crawl-delay if it is longer than the interval.
    pub(in crate::crawl) fn slow_down(&mut self, crawl_delay: Duration) {
        self.crawl_delay = self.crawl_delay.max(crawl_delay.min(MAX_CRAWL_DELAY));
    }

    /// The time at which the next request may start; not before `now`.
    pub(in crate::crawl) fn next_start(&self, now: Instant) -> Instant {
        let paced = self.last_start.map_or(now, |last| now.max(last + self.interval()));
        self.pause.until.map_or(paced, |until| paced.max(until))
    }

    /// Whether the breaker is open. While the breaker is open, the crawl sends no requests to the
    /// site.
    pub(in crate::crawl) const fn is_broken(&self) -> bool {
        self.breaker.is_open()
    }

    pub(in crate::crawl) const fn last_start(&self) -> Option<Instant> {
        self.last_start
    }

    pub(in crate::crawl) const fn start(&mut self, now: Instant) {
        self.last_start = Some(now);
    }

    /// Records the result of a request, and its time to first byte.
    pub(in crate::crawl) fn record(
        &mut self,
        now: Instant,
        answered: ResponseKind,
        first_byte: Option<Duration>,
        rng: &mut impl Rng,
    ) {
        if let Some(first_byte) = first_byte {
            self.mean_first_byte += NEWEST * (first_byte.as_secs_f64() - self.mean_first_byte);
        }
        let badly = answered != ResponseKind::Good;
        self.breaker.record(badly);
        self.refusals.forgive(now);
        if let ResponseKind::TurnedAway(asked) = answered {
            let pause = self.refusals.record(now, asked);
            self.pause.extend(now, pause, rng);
        }
        self.window.count(now, badly);
        self.check_error_share(now, rng);
    }

    /// Records that the body of a good response was cut off, or took too long.
    pub(in crate::crawl) fn broke_off(&mut self, now: Instant, rng: &mut impl Rng) {
        self.breaker.broke_off();
        self.window.broke_off();
        self.check_error_share(now, rng);
    }

    fn check_error_share(&mut self, now: Instant, rng: &mut impl Rng) {
        if self.window.take_too_many_errors(now) {
            self.pause.extend(now, WINDOW_PAUSE, rng);
        }
    }

    /// The minimum time between two requests.
    fn interval(&self) -> Duration {
        let interval = interval_of(self.pages, self.slow, self.fast).max(self.crawl_delay);
        let interval = if self.scheduler_silent { interval * SILENT_FACTOR } else { interval };
        interval.max(self.trouble())
    }

    /// Minimum time between requests to a slow site; zero if the site is not slow.
    fn trouble(&self) -> Duration {
        let twice = Duration::try_from_secs_f64(2.0 * self.mean_first_byte).unwrap_or(LONGEST_PAUSE);
        if twice >= 2 * SLOW { twice } else { Duration::ZERO }
    }
}

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

/// Fraction of the time to the leases' deadline after which crawls count as disconnected. A
/// heartbeat interval is at most half of a lease's lifetime, and varies by up to a fifth. So while
/// the connection works, the next heartbeat is sent earlier, after at most 0.6 of the time to the
/// deadline.
const SILENT_SHARE: f64 = 0.75;

/// The time from which an agent's crawls count as disconnected, because the scheduler does not
/// answer. Clones share the state. A crawl without a scheduler is never disconnected.
#[derive(Debug, Clone, Default)]
pub struct SchedulerSilence(Arc<Mutex<Option<BootTime>>>);

impl SchedulerSilence {
    /// Call this when the scheduler has begun or renewed the leases, which now end at `deadline`.
    pub fn leases_renewed(&self, deadline: BootTime) {
        let now = BootTime::now();
        self.begins_at(now.after(deadline.remaining(now).mul_f64(SILENT_SHARE)));
    }

    /// Call this when a session ends. Crawls then count as disconnected until the next session.
    pub fn session_ended(&self) {
        self.begins_at(BootTime::now());
    }

    pub fn has_begun(&self) -> bool {
        let from = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        from.is_some_and(|from| from.remaining(BootTime::now()).is_zero())
    }

    fn begins_at(&self, moment: BootTime) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(moment);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::ChaCha8Rng;

    use super::*;
    use crate::crawl::politeness::BREAKER;
    use crate::crawl::politeness::pauses::{FORGIVEN_AFTER, JITTER};

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn rng() -> ChaCha8Rng {
        ChaCha8Rng::seed_from_u64(5)
    }

    fn wait(politeness: &Politeness, now: Instant) -> Duration {
        politeness.next_start(now) - now
    }

    fn about(wait: Duration, seconds: u64) -> bool {
        let least = Duration::from_secs(seconds);
        wait >= least && wait <= least.mul_f64(1.0 + JITTER)
    }

    #[test]
    fn starts_are_an_interval_apart() {
        let begin = Instant::now();
        let mut politeness = Politeness::new(ms(100));
        assert_eq!(politeness.next_start(begin), begin);
        politeness.start(begin);
        assert_eq!(politeness.next_start(begin + ms(30)), begin + ms(100));
        assert_eq!(politeness.next_start(begin + ms(130)), begin + ms(130));
    }

    #[test]
    fn a_silent_scheduler_doubles_the_interval() {
        let begin = Instant::now();
        let mut politeness = Politeness::new(ms(1000)).down_to(ms(100));
        politeness.start(begin);
        politeness.set_scheduler_silent(true);
        assert_eq!((wait(&politeness, begin), politeness.rate_state(begin).interval), (ms(2000), ms(2000)));
        politeness.learn_size(1 << 40);
        assert_eq!(wait(&politeness, begin), ms(200), "a large site is asked less often too");
        politeness.set_scheduler_silent(false);
        assert_eq!(wait(&politeness, begin), ms(100));
    }

    #[test]
    fn a_large_site_gets_a_shorter_interval_unless_it_responds_slowly() {
        let begin = Instant::now();
        let mut politeness = Politeness::new(ms(1000)).down_to(ms(100));
        politeness.start(begin);
        assert_eq!(wait(&politeness, begin), ms(1000), "of unknown size");
        politeness.learn_size(1 << 40);
        politeness.learn_size(5);
        assert_eq!(wait(&politeness, begin), ms(100));
        politeness.slow_down(ms(300));
        assert_eq!(wait(&politeness, begin), ms(300));
        (0..30).for_each(|_| politeness.record(begin, ResponseKind::Good, Some(ms(4000)), &mut rng()));
        assert!(wait(&politeness, begin) > ms(7900));
    }

    #[test]
    fn a_pause_beyond_the_clocks_range_is_capped() {
        let begin = Instant::now();
        let mut politeness = Politeness::new(Duration::MAX);
        politeness.start(begin);
        assert_eq!(politeness.next_start(begin), begin + LONGEST_PAUSE);
    }

    #[test]
    fn a_refusal_with_a_pause_is_honoured_up_to_a_day() {
        let (now, mut politeness) = (Instant::now(), Politeness::new(ms(1)));
        politeness.record(now, ResponseKind::TurnedAway(Some(Duration::from_secs(7))), None, &mut rng());
        assert!(about(wait(&politeness, now), 7));
        politeness.record(now, ResponseKind::TurnedAway(Some(Duration::MAX)), None, &mut rng());
        assert!(about(wait(&politeness, now), 86_400));
    }

    #[test]
    fn a_refusal_without_a_pause_doubles_the_pause_until_the_count_resets() {
        let (mut now, mut politeness, mut rng) = (Instant::now(), Politeness::new(ms(1)), rng());
        for seconds in [60, 120, 240, 480] {
            politeness.record(now, ResponseKind::TurnedAway(None), None, &mut rng);
            assert!(about(wait(&politeness, now), seconds), "{:?}", wait(&politeness, now));
            now = politeness.next_start(now);
        }
        for _ in 0..20 {
            politeness.record(now, ResponseKind::TurnedAway(None), None, &mut rng);
            assert!(wait(&politeness, now) <= LONGEST_PAUSE.mul_f64(1.0 + JITTER));
        }
        now = politeness.next_start(now) + FORGIVEN_AFTER;
        politeness.record(now, ResponseKind::Good, None, &mut rng);
        politeness.record(now, ResponseKind::TurnedAway(None), None, &mut rng);
        assert!(about(wait(&politeness, now), 60), "{:?}", wait(&politeness, now));
    }

    #[test]
    fn more_than_a_tenth_of_errors_in_a_minute_causes_a_pause() {
        let (now, mut rng) = (Instant::now(), rng());
        let after = |errors: usize, well: usize, apart: Duration, rng: &mut ChaCha8Rng| {
            let mut politeness = Politeness::new(ms(1));
            let mut at = now;
            for number in 0..errors + well {
                at += apart;
                let answered = if number < errors { ResponseKind::Bad } else { ResponseKind::Good };
                politeness.record(at, answered, None, rng);
            }
            wait(&politeness, at)
        };
        assert_eq!(after(2, 18, ms(100), &mut rng), Duration::ZERO, "a tenth is not more than a tenth");
        assert_eq!(after(19, 0, ms(100), &mut rng), Duration::ZERO, "too few to say");
        assert!(about(after(3, 17, ms(100), &mut rng), 60));
        assert_eq!(after(3, 17, Duration::from_secs(20), &mut rng), Duration::ZERO, "of long ago");
    }

    #[test]
    fn bodies_that_break_off_count_as_errors() {
        let (mut politeness, mut rng, begin) = (Politeness::new(ms(0)), rng(), Instant::now());
        for number in 1..=BREAKER {
            assert!(!politeness.is_broken());
            let at = begin + Duration::from_secs(61) * number;
            politeness.record(at, ResponseKind::Good, None, &mut rng);
            politeness.broke_off(at, &mut rng);
        }
        assert!(politeness.is_broken());
        let mut politeness = Politeness::new(ms(0));
        for _ in 0..20 {
            politeness.record(begin, ResponseKind::Good, None, &mut rng);
        }
        for _ in 0..3 {
            politeness.record(begin, ResponseKind::Good, None, &mut rng);
            politeness.broke_off(begin, &mut rng);
        }
        assert!(about(wait(&politeness, begin), 60));
    }

    #[test]
    fn a_restart_keeps_the_politeness_state() {
        let (now, mut politeness, mut rng) = (Instant::now(), Politeness::new(ms(1)), rng());
        (0..3).for_each(|_| politeness.record(now, ResponseKind::TurnedAway(None), None, &mut rng));
        let mut next = Politeness::new(ms(1));
        next.restore(politeness.rate_state(now + ms(5000)), now);
        assert_eq!(wait(&next, now) + ms(5000), wait(&politeness, now));
        next.record(now, ResponseKind::TurnedAway(None), None, &mut rng);
        assert!(about(wait(&next, now), 480));
        let (turned_away, failed_in_a_row, pause) = (u32::MAX, u32::MAX, Duration::MAX);
        let absurd = RateState { turned_away, failed_in_a_row, pause, ..RateState::default() };
        next.restore(absurd, now);
        assert_eq!(wait(&next, now), LONGEST_PAUSE);
    }

    proptest! {
        #[test]
        fn no_response_shortens_the_interval(
            answers in prop::collection::vec((0_u8..4, 0_u64..100_000, 0_u64..40_000), 0..200),
            interval in 0_u64..5000,
        ) {
            let (mut now, mut rng) = (Instant::now(), rng());
            let mut politeness = Politeness::new(ms(interval));
            let mut last = None;
            for (kind, asked, first_byte) in answers {
                let start = politeness.next_start(now);
                prop_assert!(start >= now && last.is_none_or(|last| start >= last + ms(interval)));
                politeness.start(start);
                last = Some(start);
                now = start + ms(first_byte);
                let answered = match kind {
                    0 | 1 => ResponseKind::Good,
                    2 => ResponseKind::Bad,
                    _ => ResponseKind::TurnedAway((asked % 2 == 0).then(|| ms(asked))),
                };
                politeness.record(now, answered, Some(ms(first_byte)), &mut rng);
            }
        }
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
        let mut politeness = Politeness::new(ms(100));
        politeness.slow_down(ms(20));
        assert_eq!(politeness.interval(), ms(100));
        politeness.slow_down(ms(700));
        assert_eq!(politeness.interval(), ms(700));
        politeness.slow_down(Duration::from_secs(86_400));
        assert_eq!(politeness.interval(), MAX_CRAWL_DELAY);
    }

    #[test]
    fn late_first_bytes_lengthen_the_interval() {
        let (mut politeness, begin) = (Politeness::new(ms(500)), Instant::now());
        (0..30).for_each(|_| politeness.record(begin, ResponseKind::Good, Some(ms(400)), &mut rng()));
        assert_eq!(politeness.interval(), ms(500));
        (0..30).for_each(|_| politeness.record(begin, ResponseKind::Good, Some(ms(4000)), &mut rng()));
        assert!((ms(7900)..ms(8000)).contains(&politeness.interval()), "{:?}", politeness.interval());
        (0..30).for_each(|_| politeness.record(begin, ResponseKind::Good, Some(ms(100)), &mut rng()));
        assert_eq!(politeness.interval(), ms(500));
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

    #[test]
    fn the_scheduler_is_silent_after_a_session_ends_or_most_of_the_lease_has_passed() {
        let silence = SchedulerSilence::default();
        assert!(!silence.has_begun(), "there never was a scheduler");
        silence.leases_renewed(BootTime::now().after(Duration::from_secs(3600)));
        assert!(!silence.has_begun());
        silence.session_ended();
        assert!(silence.has_begun());
        silence.leases_renewed(BootTime::now().after(Duration::from_secs(3600)));
        assert!(!silence.has_begun(), "it is heard again");
        silence.leases_renewed(BootTime::now());
        assert!(silence.has_begun(), "nothing is left");
    }
}
