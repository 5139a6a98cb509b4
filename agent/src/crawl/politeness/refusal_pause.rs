//! Decides how long a crawl pauses after a refusal: a response with status 429 or 503.
//!
//! The pause is as long as the response's `Retry-After` header requires. Without this header, the
//! pause doubles with each refusal.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::pause::LONGEST_PAUSE;

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
}
