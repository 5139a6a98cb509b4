//! Whether requests came as seldom as was promised, by the servers' own logs. Pure.
//!
//! A host is promised one crawl with a request an interval, and an address so many crawls at once. So in every window, from any request
//! to any later one, there are no more than the crawls times (the window over the interval, and one).

use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub struct Promise {
    /// From the start of one request of a crawl to the start of the next.
    pub interval: Duration,
    /// How much longer one request may be under way than another. They are promised as they start, and seen as they arrive.
    pub slack: Duration,
}

/// The window that comes nearest to what is promised, or is farthest beyond it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fullest {
    /// Requests in it, the first and the last among them.
    pub requests: u32,
    /// How long it is.
    pub window: Duration,
    /// How many were promised at most.
    pub allowed: f64,
}

impl Fullest {
    /// What share of the promise is used up; more than one breaks it.
    pub fn share(&self) -> f64 {
        f64::from(self.requests) / self.allowed
    }
}

impl Promise {
    /// The fullest of all windows from one request to a later one of a log in order of arrival, where so many crawls at once were
    /// promised; `None` where there are fewer than two.
    pub fn fullest(&self, arrivals: &[Instant], crawls: u32) -> Option<Fullest> {
        let windows = arrivals.iter().enumerate().flat_map(|(index, first)| {
            let since = arrivals[index..].iter().map(|last| last.duration_since(*first));
            (1_u32..).zip(since).skip(1).map(|(requests, window)| {
                let intervals = (window + self.slack).as_secs_f64() / self.interval.as_secs_f64();
                Fullest { requests, window, allowed: f64::from(crawls) * (intervals + 1.0) }
            })
        });
        windows.max_by(|one, other| one.share().total_cmp(&other.share()))
    }
}

/// How many of these spans there were at once, at most; one that begins as another ends is not beside it.
pub fn most_at_once(spans: &[(Instant, Instant)]) -> usize {
    let beside = |at: Instant| spans.iter().filter(|(begin, end)| *begin <= at && at < *end).count();
    spans.iter().map(|(begin, _)| beside(*begin)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMISE: Promise = Promise { interval: Duration::from_millis(100), slack: Duration::from_millis(10) };

    fn at(millis: &[u64]) -> Vec<Instant> {
        let begin = Instant::now();
        millis.iter().map(|millis| begin + Duration::from_millis(*millis)).collect()
    }

    fn holds(millis: &[u64], crawls: u32) -> bool {
        PROMISE.fullest(&at(millis), crawls).is_none_or(|fullest| fullest.share() <= 1.0)
    }

    #[test]
    fn a_request_an_interval_is_what_was_promised_and_one_more_is_not() {
        assert!(holds(&[], 1) && holds(&[5], 1));
        assert!(holds(&[0, 100, 200, 300], 1));
        assert!(holds(&[0, 91, 200], 1), "one was longer under way");
        assert!(!holds(&[0, 80, 200], 1));
        assert!(!holds(&[0, 91, 182, 273], 1), "the slack is of a window, not of each request");
        assert!(!holds(&[0, 100, 200, 201, 300, 400], 1));
    }

    #[test]
    fn two_crawls_may_ask_at_the_same_moment_and_three_may_not() {
        assert!(holds(&[0, 0, 100, 100, 200, 200], 2));
        assert!(!holds(&[0, 0, 100, 100, 101, 200, 200], 2));
        assert!(!holds(&[0, 0, 100, 100], 1));
    }

    #[test]
    fn the_fullest_window_is_the_one_that_breaks_the_promise() {
        let fullest = PROMISE.fullest(&at(&[0, 500, 540, 1000]), 1).unwrap();
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
