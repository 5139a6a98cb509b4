//! Whether a crawl contradicts what was known of the way to its site. Pure.
//!
//! A crawl's round trip is the median over its pages, so it holds the time the server takes for pages, and the load the crawl
//! itself puts on the way. It need not be what probes saw; but when it is a multiple of that, twice in a row, the site has
//! moved, or was measured in a bad hour, and is measured again before its next task.

use std::time::Duration;

use crate::model::Rtt;

/// Predictions are off by 30 % at the 90th percentile, and pages take longer than a HEAD: less than twice says nothing.
const CONTRADICTED_BY: f64 = 2.0;
/// No load and no slow page makes a whole crawl's median this many times too long, nor probes this many times too long.
const REFUTED_BY: f64 = 4.0;
/// What a server may take for a page, whatever the distance.
const SLACK: Duration = Duration::from_millis(20);
/// Contradictions in a row after which a site is doubted: one noisy crawl is none.
pub const ENOUGH: i32 = 2;
/// So long a site that was doubted is not doubted again: crawls that keep contradicting fresh measurements see something that
/// probes do not, and measuring again would not change it.
pub const PAUSE: Duration = Duration::from_secs(6 * 3600);

/// How far a crawl contradicts what was known, in contradictions: 0 agrees, and [`ENOUGH`] is enough by itself.
pub fn weigh(known: Rtt, crawled: Rtt) -> i32 {
    let (known_ms, crawled_ms) = (known.as_millis_f64(), crawled.as_millis_f64());
    let factor = (crawled_ms / known_ms).max(known_ms / crawled_ms);
    if (crawled_ms - known_ms).abs() < SLACK.as_secs_f64() * 1e3 || factor < CONTRADICTED_BY {
        0
    } else if factor < REFUTED_BY {
        1
    } else {
        ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weigh_ms(known: u64, crawled: u64) -> i32 {
        let rtt = |millis| Rtt::try_new(Duration::from_millis(millis)).unwrap();
        assert_eq!(weigh(rtt(known), rtt(crawled)), weigh(rtt(crawled), rtt(known)));
        weigh(rtt(known), rtt(crawled))
    }

    #[test]
    fn only_a_multiple_contradicts_and_near_sites_may_think() {
        assert_eq!(weigh_ms(100, 190), 0);
        assert_eq!(weigh_ms(100, 210), 1);
        assert_eq!(weigh_ms(100, 400), ENOUGH);
        assert_eq!(weigh_ms(2, 20), 0, "ten times, and still a fast server");
        assert_eq!(weigh_ms(2, 40), ENOUGH);
    }
}
