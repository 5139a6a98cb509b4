//! Whether a crawl contradicts the known round trip to its site. Pure.
//!
//! A crawl's round trip is the median over its pages, so it includes the server's time per page and
//! the crawl's own load on the path. It may differ from what probes measured. But if it is a
//! multiple of that twice in a row, the site has moved or was measured at a bad time, and is
//! measured again before its next task.

use std::time::Duration;

use crate::model::Rtt;

/// Predictions are off by 30 % at the 90th percentile, and pages take longer than a HEAD: a factor
/// below two is no evidence.
const CONTRADICTED_BY: f64 = 2.0;
/// Neither load nor slow pages lengthen a whole crawl's median by this factor, and nothing
/// lengthens the probes' by it.
const REFUTED_BY: f64 = 4.0;
/// The server's time for a page, whatever the distance.
const SLACK: Duration = Duration::from_millis(20);
/// Consecutive contradictions that make a site doubtful: a single noisy crawl is not enough.
pub const ENOUGH: i32 = 2;
/// The time after which a site may become doubtful again. Crawls that keep contradicting fresh
/// measurements see something that probes do not, and measuring again would not change it.
pub const PAUSE: Duration = Duration::from_secs(6 * 3600);

/// The number of contradictions that a crawl counts as: 0 if it agrees; [`ENOUGH`] suffices alone.
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
