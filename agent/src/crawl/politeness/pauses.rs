//! Decides how long a crawl pauses after a refusal (status 429 or 503) or after many errors in the
//! last minute, and when too many consecutive errors open the circuit breaker, which ends the
//! crawl.
//!
//! The pause is as long as the response's `Retry-After` header requires. Without this header, the
//! pause doubles with each refusal.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use rand::{Rng, RngExt};
use tokio::time::Instant;

/// The result of a request, classified by how it affects the timing of later requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::crawl) enum ResponseKind {
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
    pub(in crate::crawl) fn of(status: u16, asked: Option<&str>, now: SystemTime) -> Self {
        match status {
            _ if turns_away(status) => Self::TurnedAway(asked.and_then(|value| retry_after(value, now))),
            403 | 500.. => Self::Bad,
            _ => Self::Good,
        }
    }
}

/// Maximum number of requests for one page, including the first, if the site keeps responding with
/// 429 or 503.
pub(in crate::crawl) const ATTEMPTS: u32 = 3;
/// The pause after the first 429 or 503, if the response does not say how long to pause. Each
/// further refusal doubles the pause.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
/// After this time without a 429 or 503, earlier refusals no longer count.
pub(super) const FORGIVEN_AFTER: Duration = Duration::from_secs(30 * 60);

/// The refusals of a site.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Number of refusals since this count was last cleared.
    pub(super) count: u32,
    newest_at: Option<Instant>,
}

impl Refusals {
    pub(super) fn restored(count: u32, now: Instant) -> Self {
        Self { count, newest_at: (count > 0).then_some(now) }
    }

    /// Clears the count if the newest refusal was long ago.
    pub(super) fn forgive(&mut self, now: Instant) {
        if self.newest_at.is_some_and(|at| now.saturating_duration_since(at) >= FORGIVEN_AFTER) {
            self.count = 0;
        }
    }

    /// Counts a refusal. Returns the pause after it, which is `asked` if the response requires a
    /// pause.
    pub(super) fn record(&mut self, now: Instant, asked: Option<Duration>) -> Duration {
        let own = FIRST_PAUSE.saturating_mul(2_u32.saturating_pow(self.count.min(16)));
        self.count = self.count.saturating_add(1);
        self.newest_at = Some(now);
        asked.unwrap_or(own)
    }
}

/// Whether a response with this status refuses the request because the site is busy.
pub(in crate::crawl) const fn turns_away(status: u16) -> bool {
    matches!(status, 429 | 503)
}

/// The pause that a `Retry-After` header requires. The header contains a number of seconds, or a
/// date, which is compared with `now`. `None` if the header is invalid (RFC 9110, 10.2.3).
pub(in crate::crawl) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds).min(LONGEST_PAUSE));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    Some(until.duration_since(now).unwrap_or(Duration::ZERO).min(LONGEST_PAUSE))
}

/// Maximum pause between two requests. A longer pause would exceed the time limit of any ordinary
/// crawl, and might exceed the clock's range.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(86_400);
/// Maximum random extension of a pause, as a fraction of the pause. The random extension spreads
/// out crawls that were refused at the same time.
pub(super) const JITTER: f64 = 0.1;

/// The current pause of a crawl, if any.
#[derive(Debug, Default)]
pub(super) struct Pause {
    pub(super) until: Option<Instant>,
}

impl Pause {
    /// Makes a pause that ends `pause` after `now`.
    pub(super) fn restored(pause: Duration, now: Instant) -> Self {
        Self { until: (!pause.is_zero()).then(|| now + pause.min(LONGEST_PAUSE)) }
    }

    /// The remaining time of the pause; zero if there is none.
    pub(super) fn remaining(&self, now: Instant) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }

    pub(super) fn is_active(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until > now)
    }

    /// Permits no request until `pause` and its random extension are over. Never shortens a longer
    /// pause.
    pub(super) fn extend(&mut self, now: Instant, pause: Duration, rng: &mut impl Rng) {
        let pause = pause.min(LONGEST_PAUSE).mul_f64(1.0 + rng.random_range(0.0..=JITTER));
        let until = now + pause;
        self.until = Some(self.until.map_or(until, |other| other.max(until)));
    }
}

/// A crawl pauses for `WINDOW_PAUSE` if it sent at least `LEAST_REQUESTS` requests in the last
/// `WINDOW`, and more than `MAX_ERROR_SHARE` of these requests failed.
const WINDOW: Duration = Duration::from_secs(60);
const LEAST_REQUESTS: u32 = 20;
const MAX_ERROR_SHARE: f64 = 0.1;
pub(super) const WINDOW_PAUSE: Duration = Duration::from_secs(60);
/// The time that one entry of `ErrorWindow::seconds` covers. The length of the window may be wrong
/// by up to this time.
const SECOND: Duration = Duration::from_secs(1);

/// The responses of the last minute.
#[derive(Debug, Default)]
pub(super) struct ErrorWindow {
    /// One entry per second in which responses arrived.
    seconds: VecDeque<WindowSecond>,
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

impl ErrorWindow {
    /// Counts a response, and removes old responses.
    pub(super) fn count(&mut self, now: Instant, badly: bool) {
        let is_current = |second: &WindowSecond| now.saturating_duration_since(second.began) < SECOND;
        if !self.seconds.back().is_some_and(is_current) {
            self.seconds.push_back(WindowSecond { began: now, requests: 0, errors: 0 });
        }
        if let Some(second) = self.seconds.back_mut() {
            second.requests = second.requests.saturating_add(1);
            second.errors = second.errors.saturating_add(u32::from(badly));
        }
        while self.seconds.front().is_some_and(|second| !second.is_recent(now)) {
            self.seconds.pop_front();
        }
    }

    /// Counts the newest response, which was counted as good, as an error.
    pub(super) fn broke_off(&mut self) {
        if let Some(second) = self.seconds.back_mut() {
            second.errors = second.errors.saturating_add(1).min(second.requests);
        }
    }

    /// Number of requests in the last minute, and how many of them failed.
    pub(super) fn recent(&self, now: Instant) -> (u32, u32) {
        let recent = self.seconds.iter().filter(|second| second.is_recent(now));
        recent.fold((0_u32, 0_u32), |(requests, errors), second| {
            (requests.saturating_add(second.requests), errors.saturating_add(second.errors))
        })
    }

    /// Whether the crawl must pause. If so, removes all responses.
    pub(super) fn take_too_many_errors(&mut self, now: Instant) -> bool {
        let (requests, errors) = self.recent(now);
        let too_many = requests >= LEAST_REQUESTS && f64::from(errors) > MAX_ERROR_SHARE * f64::from(requests);
        if too_many {
            self.seconds.clear();
        }
        too_many
    }
}

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

    #[test]
    fn the_error_window_takes_the_same_memory_at_any_rate() {
        let (now, mut window) = (Instant::now(), ErrorWindow::default());
        for number in 0..200_000 {
            window.count(now + Duration::from_micros(500 * number), false);
        }
        assert!(window.seconds.len() <= 62, "{}", window.seconds.len());
        let (recent, _) = window.recent(now + Duration::from_secs(100));
        assert!((118_000..=122_000).contains(&recent), "{recent}");
    }

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
