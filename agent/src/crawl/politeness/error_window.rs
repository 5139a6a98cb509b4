//! Decides from the responses of the last minute whether a crawl pauses because of many errors.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
