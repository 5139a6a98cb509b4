//! Decides whether a crawl contradicts the known round trip to its site.
//!
//! A crawl's round trip is the median over the crawl's pages. This median includes the server's
//! time per page and the crawl's own load on the path, so it may differ from the probes'
//! measurements. But if the round trips of two consecutive crawls differ from the measurements by a
//! large factor, the measurements are probably wrong, so the site is measured again before its next
//! task.

use std::time::Duration;

use crate::model::Rtt;

/// If a crawl's round trip and the known round trip differ by a smaller factor, the crawl is not a
/// contradiction. The factor is large, because predictions err by up to 30 % in nine of ten cases,
/// and pages take longer than HEAD requests.
const CONTRADICTED_BY: f64 = 2.0;
/// A single crawl that differs by at least this factor causes a new measurement of the site,
/// because neither load nor slow pages change the median of a whole crawl so much.
const REFUTED_BY: f64 = 4.0;
/// A difference shorter than this is not a contradiction, because servers need some time per page.
const SLACK: Duration = Duration::from_millis(20);
/// Number of consecutive contradictions after which a site is measured again.
pub const ENOUGH: i32 = 2;
/// Minimum time between two measurements of a site that are caused by contradictions. If crawls
/// contradict even new measurements, measuring more often does not help.
pub const PAUSE: Duration = Duration::from_secs(6 * 3600);

/// The number of contradictions that a crawl counts as: 0 if the crawl agrees with `known`,
/// [`ENOUGH`] if this crawl alone must cause a new measurement.
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
