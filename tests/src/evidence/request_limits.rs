//! Checks in the servers' logs whether requests kept within the rate limits. This module does no
//! I/O.
//!
//! At most one crawl of a host runs at a time, and a crawl sends one request per interval. At most
//! `crawls` crawls run at an address at the same time. So a window that begins with one request and
//! ends with a later request contains at most `crawls` × (window / interval + 1) requests, where
//! `window` is the duration of the window.

use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub struct RequestLimit {
    /// Minimum time between the starts of two consecutive requests of a crawl.
    pub interval: Duration,
    /// Maximum difference between the transit times of two requests. The rate limit applies to the
    /// times of sending, but logs contain arrival times.
    pub slack: Duration,
}

/// The window in which the number of requests is the largest fraction of the permitted number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FullestWindow {
    /// Number of requests, including the first and the last.
    pub requests: u32,
    pub window: Duration,
    /// Permitted number of requests.
    pub allowed: f64,
}

impl FullestWindow {
    /// The requests as a fraction of the permitted number. If the fraction is above 1, the limit is
    /// violated.
    pub fn share(&self) -> f64 {
        f64::from(self.requests) / self.allowed
    }
}

impl RequestLimit {
    /// The fullest window of an address's log; `None` if there are fewer than two requests.
    /// `arrivals` is in ascending order. At most `crawls` crawls of the address may run at the same
    /// time.
    pub fn fullest(&self, arrivals: &[Instant], crawls: u32) -> Option<FullestWindow> {
        let windows = arrivals.iter().enumerate().flat_map(|(index, first)| {
            let since = arrivals[index..].iter().map(|last| last.duration_since(*first));
            (1_u32..).zip(since).skip(1).map(|(requests, window)| {
                let intervals = (window + self.slack).as_secs_f64() / self.interval.as_secs_f64();
                FullestWindow { requests, window, allowed: f64::from(crawls) * (intervals + 1.0) }
            })
        });
        windows.max_by(|one, other| one.share().total_cmp(&other.share()))
    }
}

/// Maximum number of spans that overlap at one time. A span excludes its end.
pub fn most_at_once(spans: &[(Instant, Instant)]) -> usize {
    let beside = |at: Instant| spans.iter().filter(|(begin, end)| *begin <= at && at < *end).count();
    spans.iter().map(|(begin, _)| beside(*begin)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: RequestLimit = RequestLimit { interval: Duration::from_millis(100), slack: Duration::from_millis(10) };

    fn at(millis: &[u64]) -> Vec<Instant> {
        let begin = Instant::now();
        millis.iter().map(|millis| begin + Duration::from_millis(*millis)).collect()
    }

    fn holds(millis: &[u64], crawls: u32) -> bool {
        LIMIT.fullest(&at(millis), crawls).is_none_or(|fullest| fullest.share() <= 1.0)
    }

    #[test]
    fn one_request_per_interval_is_allowed_and_one_more_is_not() {
        assert!(holds(&[], 1) && holds(&[5], 1));
        assert!(holds(&[0, 100, 200, 300], 1));
        assert!(holds(&[0, 91, 200], 1), "one was longer under way");
        assert!(!holds(&[0, 80, 200], 1));
        assert!(!holds(&[0, 91, 182, 273], 1), "the slack is of a window, not of each request");
        assert!(!holds(&[0, 100, 200, 201, 300, 400], 1));
    }

    #[test]
    fn two_crawls_may_send_at_the_same_time_and_three_may_not() {
        assert!(holds(&[0, 0, 100, 100, 200, 200], 2));
        assert!(!holds(&[0, 0, 100, 100, 101, 200, 200], 2));
        assert!(!holds(&[0, 0, 100, 100], 1));
    }

    #[test]
    fn the_fullest_window_violates_the_limit() {
        let fullest = LIMIT.fullest(&at(&[0, 500, 540, 1000]), 1).unwrap();
        assert_eq!((fullest.requests, fullest.window), (2, Duration::from_millis(40)));
        assert!((fullest.allowed - 1.5).abs() < 1e-9, "{fullest:?}");
    }

    #[test]
    fn spans_are_counted_where_most_are_under_way() {
        let [a, b, c, d] = at(&[0, 10, 20, 30])[..] else { panic!("four") };
        assert_eq!(most_at_once(&[]), 0);
        assert_eq!(most_at_once(&[(a, b), (b, c), (c, d)]), 1);
        assert_eq!(most_at_once(&[(a, c), (b, d), (c, d)]), 2);
    }
}
