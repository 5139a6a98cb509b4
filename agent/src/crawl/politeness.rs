//! Decides when the next request to a site may start, and whether the crawl must end.
//!
//! This module is pure, except for [`rest`]: the caller passes the time and the random numbers. The
//! module decides when each request of a crawl may start, including requests for robots.txt, and
//! counts every response. In addition, requests are sequential: each waits for the previous
//! response. A crawl also waits with [`rest`] before it returns its lease.
//!
//! Two requests start at least the interval apart, or at least the site's crawl-delay apart if that
//! is longer. A crawl slows down if the first bytes of responses arrive late, or if the scheduler
//! is disconnected. A crawl pauses after many errors in a short time, and after a 429 or 503
//! response. The pause after a 429 or 503 is as long as the response requires. If the response does
//! not say how long, the pause doubles with each refusal. Too many consecutive errors open the
//! breaker, which ends the crawl. No rule reduces the time between two requests below the interval.
//!
//! The interval is the policy's `request_interval`. The larger the site is known to be, the closer
//! the interval comes to the policy's `shortest_interval`, if that is set. The reason: a load that
//! is negligible for a server with a hundred thousand pages may be too much for a server with ten.

pub(super) mod path_filter;
pub(super) mod pattern;
pub(super) mod robots;
pub(super) mod scheduler_silence;

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use rand::{Rng, RngExt};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Maximum crawl-delay that is honoured. With a longer delay a crawl would be pointless.
pub(super) const MAX_CRAWL_DELAY: Duration = Duration::from_secs(60);
/// A site with up to `SMALL` pages is small, and a site with at least `LARGE` pages is large.
/// `SMALL` and `LARGE` are not based on measurements. At one request per second, a site of 100
/// pages takes two minutes, and a site of 100,000 pages more than a day.
const SMALL: u64 = 100;
const LARGE: u64 = 100_000;
/// Maximum pause between two requests. A longer pause would exceed the time limit of any ordinary
/// crawl, and might exceed the clock's range.
const LONGEST_PAUSE: Duration = Duration::from_secs(86_400);
/// Maximum number of requests for one page, including the first, if the site keeps responding with
/// 429 or 503.
pub(super) const ATTEMPTS: u32 = 3;
/// The pause after the first 429 or 503, if the response does not say how long to pause. Each
/// further refusal doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// Maximum random extension of a pause, as a fraction of the pause. The random extension spreads
/// out crawls that were refused at the same time.
const JITTER: f64 = 0.1;
/// After this time without a 429 or 503, earlier refusals no longer count.
const FORGIVEN_AFTER: Duration = Duration::from_secs(30 * 60);
/// A crawl pauses for `WINDOW_PAUSE` if it sent at least `LEAST_REQUESTS` requests in the last
/// `WINDOW`, and more than `MAX_ERROR_SHARE` of these requests failed.
const WINDOW: Duration = Duration::from_secs(60);
const LEAST_REQUESTS: u32 = 20;
const MAX_ERROR_SHARE: f64 = 0.1;
/// The time that one entry of `Politeness::window` covers. The length of the window may be wrong by
/// up to this time.
const SECOND: Duration = Duration::from_secs(1);
const WINDOW_PAUSE: Duration = Duration::from_secs(60);
/// Number of consecutive errors that opens the breaker.
pub(super) const BREAKER: u32 = 50;
/// A site counts as slow if its mean time to first byte is at least this long. The interval between
/// requests to a slow site is at least twice its mean time to first byte.
const SLOW: Duration = Duration::from_secs(1);
/// Factor by which the interval grows while the scheduler is disconnected, because the scheduler
/// can then neither slow the crawl down nor end its lease.
const SILENT_FACTOR: u32 = 2;
/// The weight of the newest time to first byte in the moving average.
const NEWEST: f64 = 0.2;
/// Maximum time that a crawl keeps its slot after its last request, so that the site's next crawl
/// does not start within the request interval. If the interval is longer than this maximum, the
/// first request of the site's next crawl may come too early. One early request hardly burdens the
/// server.
pub(super) const LONGEST_REST: Duration = Duration::from_secs(60);

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

/// The result of a request, classified by how it affects the timing of later requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseKind {
    /// Any response that is not listed below.
    Good,
    /// 403, a status of 500 and above, no response in time, or a broken connection.
    Bad,
    /// 429 or 503, with the pause that the response requires.
    TurnedAway(Option<Duration>),
}

impl ResponseKind {
    /// Classifies a response by how it affects the timing of later requests. `asked` is the
    /// `Retry-After` header.
    pub(super) fn of(status: u16, asked: Option<&str>, now: SystemTime) -> Self {
        match status {
            _ if turns_away(status) => Self::TurnedAway(asked.and_then(|value| retry_after(value, now))),
            403 | 500.. => Self::Bad,
            _ => Self::Good,
        }
    }
}

/// The state that survives a restart: the numbers of refusals and errors, and the current pause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PolitenessState {
    /// Number of times the site has refused a request (429, 503) since this count was last cleared.
    pub(super) turned_away: u32,
    pub(super) in_a_row: u32,
    pub(super) pause: Duration,
}

/// The rate state of a crawl, for display.
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
pub(super) struct Politeness {
    /// The interval for a small site (`slow`) and the interval for a large site (`fast`).
    slow: Duration,
    fast: Duration,
    /// Number of the site's pages, if known.
    pages: Option<u64>,
    crawl_delay: Duration,
    scheduler_silent: bool,
    last_start: Option<Instant>,
    paused_until: Option<Instant>,
    turned_away: u32,
    turned_away_at: Option<Instant>,
    /// The responses of the last minute, with one entry per second in which responses arrived.
    window: VecDeque<WindowSecond>,
    in_a_row: u32,
    /// The number of consecutive errors before the newest response.
    in_a_row_before: u32,
    /// The moving average of the time to first byte, in seconds.
    first_byte: f64,
}

/// The responses within one second. The second starts with the first of these responses.
#[derive(Debug)]
struct WindowSecond {
    began: Instant,
    requests: u32,
    errors: u32,
}

impl WindowSecond {
    fn is_recent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.began) <= WINDOW
    }
}

impl Politeness {
    /// Makes requests start at least `interval` apart, whatever the site's size.
    pub(super) fn new(interval: Duration) -> Self {
        let slow = interval.min(LONGEST_PAUSE);
        Self {
            slow,
            fast: slow,
            pages: None,
            crawl_delay: Duration::ZERO,
            scheduler_silent: false,
            last_start: None,
            paused_until: None,
            turned_away: 0,
            turned_away_at: None,
            window: VecDeque::new(),
            in_a_row: 0,
            in_a_row_before: 0,
            first_byte: 0.0,
        }
    }

    /// Sets the interval for large sites: `shortest`, or the interval for small sites if that is
    /// shorter.
    pub(super) fn down_to(mut self, shortest: Duration) -> Self {
        self.fast = shortest.min(self.slow);
        self
    }

    /// Records that the site has at least this many pages.
    pub(super) fn learn_size(&mut self, pages: u64) {
        self.pages = self.pages.max(Some(pages));
    }

    /// The minimum time between two requests, not including the slowdown for slow sites.
    fn interval(&self) -> Duration {
        let interval = interval_of(self.pages, self.slow, self.fast).max(self.crawl_delay);
        if self.scheduler_silent { interval * SILENT_FACTOR } else { interval }
    }

    /// Sets whether the scheduler is disconnected.
    pub(super) const fn set_scheduler_silent(&mut self, scheduler_silent: bool) {
        self.scheduler_silent = scheduler_silent;
    }

    /// Restores the state that the crawl had when it was stopped.
    pub(super) fn restore(&mut self, state: PolitenessState, now: Instant) {
        self.in_a_row = state.in_a_row;
        self.turned_away = state.turned_away;
        self.turned_away_at = (state.turned_away > 0).then_some(now);
        self.paused_until = (!state.pause.is_zero()).then(|| now + state.pause.min(LONGEST_PAUSE));
    }

    /// The state to restore when the crawl resumes.
    pub(super) fn state(&self, now: Instant) -> PolitenessState {
        PolitenessState {
            turned_away: self.turned_away,
            in_a_row: self.in_a_row,
            pause: self.paused_until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now)),
        }
    }

    pub(super) fn rate_state(&self, now: Instant) -> RateState {
        let PolitenessState { turned_away, in_a_row: failed_in_a_row, pause } = self.state(now);
        let (recent_requests, recent_errors) = self.recent(now);
        let interval = self.interval().max(self.trouble());
        RateState { interval, pause, turned_away, failed_in_a_row, recent_requests, recent_errors }
    }

    pub(super) fn is_paused(&self, now: Instant) -> bool {
        self.paused_until.is_some_and(|until| until > now)
    }

    /// Honours a crawl-delay if it is longer than the interval.
    pub(super) fn slow_down(&mut self, crawl_delay: Duration) {
        self.crawl_delay = self.crawl_delay.max(crawl_delay.min(MAX_CRAWL_DELAY));
    }

    /// The time at which the next request may start; not before `now`.
    pub(super) fn next_start(&self, now: Instant) -> Instant {
        let paced = self.last_start.map_or(now, |last| now.max(last + self.interval().max(self.trouble())));
        self.paused_until.map_or(paced, |until| paced.max(until))
    }

    /// Whether the breaker is open. While the breaker is open, the crawl sends no requests to the
    /// site.
    pub(super) const fn is_broken(&self) -> bool {
        self.in_a_row >= BREAKER
    }

    pub(super) const fn last_start(&self) -> Option<Instant> {
        self.last_start
    }

    pub(super) const fn start(&mut self, now: Instant) {
        self.last_start = Some(now);
    }

    /// Records the result of a request, and its time to first byte.
    pub(super) fn record(
        &mut self,
        now: Instant,
        answered: ResponseKind,
        first_byte: Option<Duration>,
        rng: &mut impl Rng,
    ) {
        if let Some(first_byte) = first_byte {
            self.first_byte += NEWEST * (first_byte.as_secs_f64() - self.first_byte);
        }
        let badly = answered != ResponseKind::Good;
        self.in_a_row_before = self.in_a_row;
        self.in_a_row = if badly { self.in_a_row.saturating_add(1) } else { 0 };
        if self.turned_away_at.is_some_and(|at| now.saturating_duration_since(at) >= FORGIVEN_AFTER) {
            self.turned_away = 0;
        }
        if let ResponseKind::TurnedAway(asked) = answered {
            let own = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.turned_away.min(16)));
            self.turned_away = self.turned_away.saturating_add(1);
            self.turned_away_at = Some(now);
            self.pause(now, asked.unwrap_or(own), rng);
        }
        self.count(now, badly);
        self.check_error_share(now, rng);
    }

    /// Records that the body of a good response was cut off, or took too long.
    pub(super) fn broke_off(&mut self, now: Instant, rng: &mut impl Rng) {
        self.in_a_row = self.in_a_row_before.saturating_add(1);
        if let Some(second) = self.window.back_mut() {
            second.errors = second.errors.saturating_add(1).min(second.requests);
        }
        self.check_error_share(now, rng);
    }

    fn check_error_share(&mut self, now: Instant, rng: &mut impl Rng) {
        if self.too_many_errors(now) {
            self.window.clear();
            self.pause(now, WINDOW_PAUSE, rng);
        }
    }

    /// Counts a response in the window, and removes old responses from the window.
    fn count(&mut self, now: Instant, badly: bool) {
        let is_current = |second: &WindowSecond| now.saturating_duration_since(second.began) < SECOND;
        if !self.window.back().is_some_and(is_current) {
            self.window.push_back(WindowSecond { began: now, requests: 0, errors: 0 });
        }
        if let Some(second) = self.window.back_mut() {
            second.requests = second.requests.saturating_add(1);
            second.errors = second.errors.saturating_add(u32::from(badly));
        }
        while self.window.front().is_some_and(|second| !second.is_recent(now)) {
            self.window.pop_front();
        }
    }

    /// Number of requests in the last minute, and how many of them failed.
    fn recent(&self, now: Instant) -> (u32, u32) {
        let recent = self.window.iter().filter(|second| second.is_recent(now));
        recent.fold((0_u32, 0_u32), |(requests, errors), second| {
            (requests.saturating_add(second.requests), errors.saturating_add(second.errors))
        })
    }

    fn too_many_errors(&self, now: Instant) -> bool {
        let (requests, errors) = self.recent(now);
        requests >= LEAST_REQUESTS && f64::from(errors) > MAX_ERROR_SHARE * f64::from(requests)
    }

    /// Permits no request until `pause` and its random extension are over. Never shortens a longer
    /// pause.
    fn pause(&mut self, now: Instant, pause: Duration, rng: &mut impl Rng) {
        let pause = pause.min(LONGEST_PAUSE).mul_f64(1.0 + rng.random_range(0.0..=JITTER));
        let until = now + pause;
        self.paused_until = Some(self.paused_until.map_or(until, |other| other.max(until)));
    }

    /// Minimum time between requests to a slow site; zero if the site is not slow.
    fn trouble(&self) -> Duration {
        let twice = Duration::try_from_secs_f64(2.0 * self.first_byte).unwrap_or(LONGEST_PAUSE);
        if twice >= 2 * SLOW { twice } else { Duration::ZERO }
    }
}

/// Whether a response with this status refuses the request because the site is busy.
pub(super) const fn turns_away(status: u16) -> bool {
    matches!(status, 429 | 503)
}

/// The pause that a `Retry-After` header requires. The header contains a number of seconds, or a
/// date, which is compared with `now`. `None` if the header is invalid (RFC 9110, 10.2.3).
pub(super) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds).min(LONGEST_PAUSE));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    Some(until.duration_since(now).unwrap_or(Duration::ZERO).min(LONGEST_PAUSE))
}

/// Waits until a time, or until the crawl is stopped.
pub(super) async fn rest(until: Option<Instant>, stop: &CancellationToken) {
    if let Some(until) = until {
        stop.run_until_cancelled(sleep_until(until)).await;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::ChaCha8Rng;

    use super::*;

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
    fn a_crawl_delay_only_slows_down_and_is_capped() {
        let begin = Instant::now();
        let mut politeness = Politeness::new(ms(100));
        politeness.start(begin);
        politeness.slow_down(ms(20));
        assert_eq!(politeness.next_start(begin), begin + ms(100));
        politeness.slow_down(ms(700));
        assert_eq!(politeness.next_start(begin), begin + ms(700));
        politeness.slow_down(Duration::from_secs(86_400));
        assert_eq!(politeness.next_start(begin), begin + MAX_CRAWL_DELAY);
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
    fn the_error_window_takes_the_same_memory_at_any_rate() {
        let (now, mut politeness, mut rng) = (Instant::now(), Politeness::new(ms(0)), rng());
        for number in 0..200_000 {
            politeness.record(now + Duration::from_micros(500 * number), ResponseKind::Good, None, &mut rng);
        }
        assert!(politeness.window.len() <= 62, "{}", politeness.window.len());
        let recent = politeness.rate_state(now + Duration::from_secs(100)).recent_requests;
        assert!((118_000..=122_000).contains(&recent), "{recent}");
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
    fn only_consecutive_errors_open_the_breaker() {
        let (now, mut politeness, mut rng) = (Instant::now(), Politeness::new(ms(1)), rng());
        for _ in 1..BREAKER {
            politeness.record(now, ResponseKind::Bad, None, &mut rng);
        }
        assert!(!politeness.is_broken());
        politeness.record(now, ResponseKind::Good, None, &mut rng);
        (0..BREAKER).for_each(|_| politeness.record(now, ResponseKind::Bad, None, &mut rng));
        assert!(politeness.is_broken());
    }

    #[test]
    fn late_first_bytes_lengthen_the_interval() {
        let (now, mut politeness, mut rng) = (Instant::now(), Politeness::new(ms(500)), rng());
        politeness.start(now);
        (0..30).for_each(|_| politeness.record(now, ResponseKind::Good, Some(ms(400)), &mut rng));
        assert_eq!(wait(&politeness, now), ms(500));
        (0..30).for_each(|_| politeness.record(now, ResponseKind::Good, Some(ms(4000)), &mut rng));
        assert!((ms(7900)..ms(8000)).contains(&wait(&politeness, now)), "{:?}", wait(&politeness, now));
        (0..30).for_each(|_| politeness.record(now, ResponseKind::Good, Some(ms(100)), &mut rng));
        assert_eq!(wait(&politeness, now), ms(500));
    }

    #[test]
    fn a_restart_keeps_the_politeness_state() {
        let (now, mut politeness, mut rng) = (Instant::now(), Politeness::new(ms(1)), rng());
        (0..3).for_each(|_| politeness.record(now, ResponseKind::TurnedAway(None), None, &mut rng));
        let mut next = Politeness::new(ms(1));
        next.restore(politeness.state(now + ms(5000)), now);
        assert_eq!(wait(&next, now) + ms(5000), wait(&politeness, now));
        next.record(now, ResponseKind::TurnedAway(None), None, &mut rng);
        assert!(about(wait(&next, now), 480));
        let absurd = PolitenessState { turned_away: u32::MAX, in_a_row: u32::MAX, pause: Duration::MAX };
        next.restore(absurd, now);
        assert_eq!(wait(&next, now), LONGEST_PAUSE);
    }

    #[test]
    fn a_retry_after_is_seconds_or_a_date() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let read = |value| retry_after(value, now);
        assert_eq!(read("120"), Some(Duration::from_secs(120)));
        assert_eq!(read(" 0 "), Some(Duration::ZERO));
        assert_eq!(read("Sun, 06 Nov 1994 08:50:37 GMT"), Some(Duration::from_secs(60)));
        assert_eq!(read("Sun, 06 Nov 1994 08:00:00 GMT"), Some(Duration::ZERO), "it is over");
        assert_eq!(read("99999999999"), Some(LONGEST_PAUSE));
        assert_eq!(read("Thu, 01 Jan 2099 00:00:00 GMT"), Some(LONGEST_PAUSE));
        for value in ["", "-1", "soon", "1.5", "99999999999999999999999"] {
            assert_eq!(read(value), None, "{value}");
        }
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
