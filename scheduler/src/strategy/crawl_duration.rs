//! Predicts the duration of a crawl, the rest of a crawl that runs, and when an agent's slots
//! become free, and computes the size that is assumed for a site that has never been crawled.
//!
//! A page takes the round trips that TCP's slow start needs for its bytes (ten segments in the
//! first round trip, twice as many in each further round trip: RFC 6928), plus its bytes divided by
//! the agent's rate, if the rate is known. A page takes at least the request interval.
//!
//! An agent's [`Speed`] is learned from its crawls. The speed consists of the agent's rate, and of
//! a factor by which round trips are multiplied. Losses and slow servers increase this factor.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use crate::model::{AgentId, Rtt};

/// Bytes of TCP's first window: ten segments of 1,460 bytes (RFC 6928, section 2).
const FIRST_WINDOW: f64 = 14_600.0;
/// Round trips before the first page: for the connection, its first request, and robots.txt.
pub(super) const OPENING_TRIPS: f64 = 3.0;
/// If the first byte takes this many seconds or longer, the agent sends requests less often.
const LATE_S: f64 = 1.0;
/// If the first byte is late ([`LATE_S`]), the time between requests is at least this multiple of
/// the time to the first byte.
const LATE_TIMES: f64 = 2.0;
/// If a crawl's mean time per page was less than this multiple of the request interval, the
/// interval limited the crawl, so the crawl does not show the agent's speed.
pub(super) const HELD_BACK: f64 = 1.25;
/// The weight of the prior speed, as a number of crawls. Because of the prior, a single unusual
/// crawl has little effect.
const PRIOR_CRAWLS: f64 = 4.0;
/// Maximum predicted duration of a crawl, in seconds. Differences between longer durations do not
/// matter.
const LONGEST_S: f64 = 365.0 * 86_400.0;
/// The valid range of a speed's factor. An agent whose pages take ten times as long as their round
/// trips is broken.
const FACTORS: std::ops::RangeInclusive<f64> = 0.2..=10.0;

/// The size of a crawl, and the interval between its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub pages: u32,
    pub bytes: u64,
    pub interval: Duration,
}

impl Default for Work {
    /// A small site with the default interval, which is assumed before any site has been crawled.
    fn default() -> Self {
        Self { pages: 20, bytes: 400_000, interval: Duration::from_secs(1) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speed {
    /// The factor by which the round trips of pages are multiplied.
    factor: f64,
    /// Seconds per byte.
    byte_s: f64,
}

/// `Eq` is valid, because all values are finite.
impl Eq for Speed {}

impl Default for Speed {
    fn default() -> Self {
        Self { factor: 1.0, byte_s: 0.0 }
    }
}

/// A past crawl.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crawl {
    pub work: Work,
    /// The median round trip of the crawl.
    pub rtt: Rtt,
    pub took: Duration,
    /// The weight: 1 for a crawl now, less with age.
    pub weight: f64,
}

impl Work {
    /// The time that an agent at this distance needs. For many agents, call [`Work::counted`] once
    /// and then [`PreparedWork::takes`].
    pub fn takes(&self, distance: Rtt, speed: Speed) -> Duration {
        self.counted().takes(distance, speed)
    }

    /// The remaining work after `fetched` pages. If the size is unknown (not `sized`) or exceeded,
    /// at least a share (`OVERDUE_SHARE`) of the fetched pages is assumed to remain.
    pub fn left(&self, fetched: u32, sized: bool) -> Self {
        let pages = self.pages.max(1);
        let grown = Duration::from_secs(u64::from(fetched)).mul_f64(OVERDUE_SHARE).as_secs();
        let grown = u32::try_from(grown).unwrap_or(u32::MAX);
        let missing = pages.saturating_sub(fetched);
        let left = if sized && missing > 0 { missing } else { missing.max(grown).max(1) };
        let bytes = u128::from(self.bytes) * u128::from(left) / u128::from(pages);
        Self { pages: left, bytes: u64::try_from(bytes).unwrap_or(u64::MAX), ..*self }
    }

    /// The part of the work that does not depend on the agent.
    pub fn counted(&self) -> PreparedWork {
        let interval_s = self.interval.as_secs_f64();
        let (page_bytes, rounds) = (self.page_bytes(), self.rounds());
        PreparedWork { pages: f64::from(self.pages.max(1)), page_bytes, rounds, interval_s }
    }

    /// Number of round trips that slow start needs for one page.
    fn rounds(&self) -> f64 {
        (self.page_bytes() / FIRST_WINDOW + 1.0).log2().max(1.0)
    }

    fn page_bytes(&self) -> f64 {
        let bytes = Duration::from_micros(self.bytes).as_secs_f64() * 1e6;
        bytes / f64::from(self.pages.max(1))
    }

    /// The time of one page's round trips, in seconds.
    fn trips_s(&self, distance: Rtt) -> f64 {
        self.rounds() * distance.as_duration().as_secs_f64()
    }
}

/// Values of [`Work`] that are the same for all agents.
#[derive(Debug, Clone, Copy)]
pub struct PreparedWork {
    pages: f64,
    page_bytes: f64,
    rounds: f64,
    interval_s: f64,
}

impl PreparedWork {
    pub fn takes(&self, distance: Rtt, speed: Speed) -> Duration {
        seconds(self.takes_s(distance, speed))
    }

    pub(super) fn takes_s(&self, distance: Rtt, speed: Speed) -> f64 {
        self.takes_at_s(distance.as_duration().as_secs_f64(), speed)
    }

    /// The time of one page, in seconds, without the wait before the next request.
    pub(super) fn page_s(&self, distance: Rtt, speed: Speed) -> f64 {
        self.page_at_s(distance.as_duration().as_secs_f64(), speed)
    }

    fn page_at_s(&self, trip: f64, speed: Speed) -> f64 {
        speed.factor * self.rounds * trip + speed.byte_s * self.page_bytes
    }

    /// The minimum time between requests of an agent at this distance, in seconds.
    pub(super) fn interval_s(&self, distance: Rtt) -> f64 {
        self.interval_at_s(distance.as_duration().as_secs_f64())
    }

    fn interval_at_s(&self, trip: f64) -> f64 {
        if trip >= LATE_S { self.interval_s.max(LATE_TIMES * trip) } else { self.interval_s }
    }

    /// The time that an agent with a round trip of `trip` seconds needs, in seconds.
    pub(crate) fn takes_at_s(&self, trip: f64, speed: Speed) -> f64 {
        let page = self.page_at_s(trip, speed);
        (OPENING_TRIPS * trip + self.pages * page.max(self.interval_at_s(trip))).clamp(0.0, LONGEST_S)
    }
}

impl Speed {
    /// Limits the factor to its valid range. An invalid rate is ignored.
    pub fn new(factor: f64, bytes_per_s: Option<f64>) -> Self {
        let rate = bytes_per_s.filter(|rate| rate.is_finite() && *rate > 0.0);
        Self { factor: believed(factor), byte_s: rate.map_or(0.0, f64::recip) }
    }

    pub const fn factor(self) -> f64 {
        self.factor
    }

    /// The rate in bytes per second; `None` if bytes take no extra time.
    pub fn bytes_per_s(self) -> Option<f64> {
        (self.byte_s > 0.0).then(|| self.byte_s.recip())
    }

    /// Learns the speed from these crawls, with `self` as the prior. The factor of [`Speed`] and
    /// its seconds per byte are fitted by least squares to the crawls' times per page, each divided
    /// by the time that the prior predicts. `PRIOR_CRAWLS` more crawls, which match the prior
    /// exactly, are assumed.
    pub fn learned(self, crawls: &[Crawl]) -> Self {
        let mut sums = RegressionSums::default();
        for crawl in crawls.iter().filter(|crawl| crawl.work.pages > 0 && crawl.weight > 0.0) {
            let page = crawl.took.as_secs_f64() / f64::from(crawl.work.pages);
            if page < HELD_BACK * crawl.work.counted().interval_s(crawl.rtt) {
                continue;
            }
            let (trips, bytes) = (crawl.work.trips_s(crawl.rtt), crawl.work.page_bytes());
            // Times are divided by the times that the prior predicts, so that long and short crawls
            // have equal weight.
            let believed = self.factor * trips + self.byte_s * bytes;
            sums.add(crawl.weight, trips / believed, bytes / believed, page / believed);
        }
        sums.solve(self)
    }
}

fn believed(factor: f64) -> f64 {
    if factor.is_finite() { factor.clamp(*FACTORS.start(), *FACTORS.end()) } else { 1.0 }
}

/// The sums of a regression of `y` on `x` and `z` without an intercept.
#[derive(Debug, Default)]
struct RegressionSums {
    weight: f64,
    xx: f64,
    xz: f64,
    zz: f64,
    xy: f64,
    zy: f64,
}

impl RegressionSums {
    fn add(&mut self, weight: f64, x: f64, z: f64, y: f64) {
        if ![x, z, y].iter().all(|one| one.is_finite()) {
            return;
        }
        self.weight += weight;
        self.xx += weight * x * x;
        self.xz += weight * x * z;
        self.zz += weight * z * z;
        self.xy += weight * x * y;
        self.zy += weight * z * y;
    }

    /// The speed, shrunk towards `prior` as if by [`PRIOR_CRAWLS`] more crawls.
    fn solve(&self, prior: Speed) -> Speed {
        if self.weight <= 0.0 {
            return prior;
        }
        let per_crawl = PRIOR_CRAWLS / self.weight;
        // Each unknown is regularised by the mean square of its column, so units do not matter.
        let (hold_x, hold_z) = (per_crawl * self.xx, per_crawl * self.zz);
        let (xx, zz) = (self.xx + hold_x, self.zz + hold_z);
        let (xy, zy) = (self.xy + hold_x * prior.factor, self.zy + hold_z * prior.byte_s);
        let determinant = xx * zz - self.xz * self.xz;
        if !(determinant > 0.0 && determinant.is_finite()) {
            return Speed { factor: believed(xy / xx), byte_s: prior.byte_s };
        }
        let factor = (xy * zz - zy * self.xz) / determinant;
        let byte_s = (zy * xx - xy * self.xz) / determinant;
        if byte_s < 0.0 {
            return Speed { factor: believed(xy / xx), byte_s: 0.0 };
        }
        Speed { factor: believed(factor), byte_s }
    }
}

/// Converts seconds to a duration with a precision of a nanosecond, faster than `Duration`'s own
/// conversion. Planning five hundred sites for a thousand agents calls this function half a million
/// times.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float saturates, as is meant"
)]
fn seconds(seconds: f64) -> Duration {
    Duration::from_nanos((seconds.min(LONGEST_S) * 1e9).round_ties_even() as u64)
}

/// Age at which a crawl's weight has halved: a day, because networks change over days, not minutes.
const HALF_LIFE: Duration = Duration::from_secs(86_400);

pub fn crawl_weight(age: Duration) -> f64 {
    0.5_f64.powf(age.div_duration_f64(HALF_LIFE))
}

pub fn speeds(crawls: &HashMap<AgentId, Vec<Crawl>>) -> HashMap<AgentId, Speed> {
    crawls.iter().map(|(agent, crawls)| (*agent, Speed::default().learned(crawls))).collect()
}

/// Mean pages and bytes of crawls; `None` if there are no crawls.
pub fn usual_size(crawls: &HashMap<AgentId, Vec<Crawl>>) -> Option<(u32, u64)> {
    let all = || crawls.values().flatten().map(|crawl| crawl.work);
    let count = u64::try_from(all().count()).ok().filter(|count| *count > 0)?;
    let pages = all().map(|work| u64::from(work.pages)).sum::<u64>() / count;
    let bytes = all().fold(0_u64, |sum, work| sum.saturating_add(work.bytes)) / count;
    Some((u32::try_from(pages).unwrap_or(u32::MAX), bytes))
}

/// If a crawl exceeds its predicted time, its remaining time is assumed to be this share of the
/// time that it has taken so far. The longer a crawl has taken, the larger its site probably is,
/// because most sites are small and a few are very large.
const OVERDUE_SHARE: f64 = 0.3;

/// Time until each slot of an agent is free. `under_way` contains the remaining time of each
/// running crawl, and `waiting` the time of each waiting task. Each waiting task, in order, gets
/// the slot that becomes free first.
pub fn frees(slots: usize, under_way: &[Duration], waiting: &[Duration]) -> Vec<Duration> {
    let mut free: BinaryHeap<Reverse<Duration>> = under_way.iter().copied().map(Reverse).collect();
    // If there are more crawls than slots, no slot becomes free when the first of the crawls ends.
    while free.len() > slots {
        free.pop();
    }
    while free.len() < slots {
        free.push(Reverse(Duration::ZERO));
    }
    for takes in waiting {
        if let Some(mut first) = free.peek_mut() {
            first.0 = first.0.saturating_add(*takes);
        }
    }
    free.into_iter().map(|Reverse(free)| free).collect()
}

/// The remaining time of a crawl that has run for `under_way` and was predicted to take `takes`.
pub fn remaining(takes: Duration, under_way: Duration) -> Duration {
    takes.saturating_sub(under_way).max(under_way.mul_f64(OVERDUE_SHARE))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, prop_assert, proptest};

    use super::*;

    fn rtt(millis: f64) -> Rtt {
        Rtt::try_from_millis_f64(millis).unwrap()
    }

    fn work(pages: u32, page_bytes: u64, interval_ms: u64) -> Work {
        Work { pages, bytes: u64::from(pages) * page_bytes, interval: Duration::from_millis(interval_ms) }
    }

    #[test]
    fn small_pages_take_a_round_trip_each_and_larger_ones_the_rounds_of_slow_start() {
        let opening = OPENING_TRIPS * 0.1;
        let takes = |work: Work| work.takes(rtt(100.0), Speed::default()).as_secs_f64() - opening;
        assert!((takes(work(10, 1000, 0)) - 1.0).abs() < 1e-6);
        // 43,800 bytes are a first window of 14,600 bytes plus a second window of twice this size.
        assert!((takes(work(10, 43_800, 0)) - 2.0).abs() < 1e-6);
        assert!((takes(work(10, 43_800, 500)) - 5.0).abs() < 1e-6, "the interval is longer");
        let slow = Speed::new(1.0, Some(43_800.0));
        let takes = work(10, 43_800, 0).takes(rtt(100.0), slow).as_secs_f64() - opening;
        assert!((takes - 12.0).abs() < 1e-6, "{takes}");
    }

    #[test]
    fn what_crawls_took_tells_factor_and_rate_and_one_lucky_crawl_hardly_anything() {
        let truth = Speed::new(2.0, Some(100_000.0));
        let crawl = |pages: u32, page_bytes: u64, millis: f64| {
            let work = work(pages, page_bytes, 0);
            let page = truth.factor * work.trips_s(rtt(millis)) + truth.byte_s * work.page_bytes();
            Crawl { work, rtt: rtt(millis), took: seconds(f64::from(pages) * page), weight: 1.0 }
        };
        let sizes = [2_000_u64, 8_000, 20_000, 50_000];
        let crawls: Vec<Crawl> =
            (0..200).map(|i| crawl(10, sizes[i % 4], 10.0 + 17.0 * f64::from(u8::try_from(i % 7).unwrap()))).collect();
        // If the prior is the truth, the estimate equals the prior.
        let kept = truth.learned(&crawls);
        assert!((kept.factor - 2.0).abs() < 1e-6 && (kept.bytes_per_s().unwrap() - 1e5).abs() < 1.0, "{kept:?}");
        let learned = Speed::default().learned(&crawls);
        for one in &crawls {
            let ratio = one.work.takes(one.rtt, learned).as_secs_f64() / one.work.takes(one.rtt, truth).as_secs_f64();
            assert!((0.8..1.25).contains(&ratio), "{ratio} {learned:?}");
        }
        let lucky = Crawl { took: crawls[0].took / 10, ..crawls[0] };
        let after = truth.learned(&[lucky]);
        assert!(after.factor > 1.3, "{after:?}");
    }

    #[test]
    fn a_crawl_that_politeness_held_back_teaches_nothing() {
        let held = Crawl { work: work(10, 1000, 1000), rtt: rtt(10.0), took: Duration::from_secs(10), weight: 1.0 };
        assert_eq!(Speed::default().learned(&[held; 50]), Speed::default());
        // If answers take two seconds, the agent sends one request every four seconds.
        let far = Crawl { rtt: rtt(2000.0), took: Duration::from_secs(40), ..held };
        assert_eq!(Speed::default().learned(&[far; 50]), Speed::default());
    }

    #[test]
    fn where_answers_take_a_second_requests_are_twice_that_apart() {
        let takes = |millis: f64, interval_ms: u64| {
            let takes = work(10, 1000, interval_ms).takes(rtt(millis), Speed::default()).as_secs_f64();
            takes - OPENING_TRIPS * millis / 1e3
        };
        assert!((takes(990.0, 0) - 9.9).abs() < 1e-6);
        assert!((takes(1000.0, 0) - 20.0).abs() < 1e-6);
        assert!((takes(1000.0, 5000) - 50.0).abs() < 1e-6, "the interval is longer");
    }

    proptest! {
        #[test]
        fn nothing_that_a_crawl_reports_makes_a_time_that_is_none(
            crawls in prop::collection::vec((any::<u32>(), any::<u64>(), 1_i64..600_000_000, any::<u32>(), 0.0..1.0_f64), 0..30),
            pages in any::<u32>(),
            bytes in any::<u64>(),
        ) {
            let crawls: Vec<Crawl> = crawls
                .into_iter()
                .map(|(pages, bytes, micros, took_ms, weight)| Crawl {
                    work: Work { pages, bytes, interval: Duration::from_millis(250) },
                    rtt: Rtt::try_from_micros(micros).unwrap(),
                    took: Duration::from_millis(took_ms.into()),
                    weight,
                })
                .collect();
            let speed = Speed::default().learned(&crawls);
            prop_assert!(FACTORS.contains(&speed.factor) && speed.byte_s.is_finite() && speed.byte_s >= 0.0);
            let takes = |millis: f64| Work { pages, bytes, interval: Duration::ZERO }.takes(rtt(millis), speed);
            prop_assert!(takes(10.0) <= takes(20.0));
        }
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn slots_are_free_when_what_they_have_and_what_waits_has_ended() {
        assert_eq!(frees(2, &[], &[]), [ms(0), ms(0)]);
        let mut free = frees(3, &[ms(50), ms(20)], &[ms(30), ms(5)]);
        free.sort();
        // The free slot gets the first waiting task. The slot that is free after 20 ms gets the
        // second waiting task.
        assert_eq!(free, [ms(25), ms(30), ms(50)]);
        assert_eq!(frees(1, &[ms(50), ms(20)], &[]), [ms(50)]);
        assert!(frees(0, &[], &[ms(5)]).is_empty());
        assert_eq!(remaining(ms(100), ms(40)), ms(60));
        assert_eq!(remaining(ms(100), ms(200)), ms(60));
    }
}
