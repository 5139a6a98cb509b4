//! Throughput: how a batch grew, and how long it will still take.
//!
//! The store sums up what has ended, slice by slice ([`Slice`]) and of late ([`Recent`]); here it becomes figures. A crawl counts
//! as work spread evenly over its length: half of a crawl is half a site, so that long crawls under way are no standstill.

use std::time::Duration;

/// The longest time that is said to be left: whatever is beyond it is beyond any plan.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);
/// No time is shorter where something is divided by it.
const SHORTEST_S: f64 = 1e-3;
/// A crawl that has taken longer than usual is expected to take this part of what it has taken more: the lengths of crawls have a long
/// tail.
const OVERTIME: f64 = 0.25;
const BYTES_PER_MEGABYTE: f64 = 1e6;
const SECONDS_PER_MINUTE: f64 = 60.0;

/// Pages and bytes, in parts.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Amount {
    /// Pages.
    pub pages: f64,
    /// Bytes.
    pub bytes: f64,
}

/// What a slice of time holds, as the store sums it up at a bounded cost for each crawl, however many slices it spans.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Slice {
    /// Crawls that ended in it.
    pub ended: u64,
    /// Of crawls that began or ended in it.
    pub part: Amount,
    /// By how much more crawls brought that span the slice, than such crawls brought in the slice before.
    pub step: Amount,
}

/// What has ended altogether.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Total {
    /// Crawls ended.
    pub sites: u64,
    /// Pages.
    pub pages: u64,
    /// Bytes.
    pub bytes: u64,
}

/// How far it was at the end of a slice, and how fast in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Growth {
    /// The slice's end, from the begin of the first.
    pub until: Duration,
    /// What had ended by then; pages and bytes to the nearest whole.
    pub total: Total,
    /// Megabytes a minute in the slice.
    pub megabytes_per_minute: f64,
    /// Crawls ended a minute in it.
    pub sites_per_minute: f64,
}

/// Adds slices up over a time. Whatever the rounding of the parts: figures never fall, and the last is the total.
pub fn growth(slices: &[Slice], span: Duration, total: Total) -> Vec<Growth> {
    let width = span.as_secs_f64() / float(slices.len().max(1));
    let (mut sites, mut so_far, mut spanning) = (0, Amount::default(), Amount::default());
    let mut before = Total::default();
    let last = slices.len().saturating_sub(1);
    let mut grown = Vec::with_capacity(slices.len());
    for (index, slice) in slices.iter().enumerate() {
        sites = total.sites.min(sites + slice.ended);
        spanning = Amount { pages: spanning.pages + slice.step.pages, bytes: spanning.bytes + slice.step.bytes };
        so_far.pages += slice.part.pages + spanning.pages;
        so_far.bytes += slice.part.bytes + spanning.bytes;
        let now = match index == last {
            true => total,
            false => Total {
                sites,
                pages: whole(so_far.pages).clamp(before.pages, total.pages),
                bytes: whole(so_far.bytes).clamp(before.bytes, total.bytes),
            },
        };
        grown.push(Growth {
            until: seconds(width * float(index + 1)),
            total: now,
            megabytes_per_minute: megabytes_per_minute(now.bytes.saturating_sub(before.bytes), seconds(width))
                .unwrap_or(0.0),
            sites_per_minute: per_minute(count(now.sites.saturating_sub(before.sites)), seconds(width)).unwrap_or(0.0),
        });
        before = now;
    }
    grown
}

/// So many megabytes a minute; `None` where no time has passed.
pub fn megabytes_per_minute(bytes: u64, time: Duration) -> Option<f64> {
    per_minute(count(bytes) / BYTES_PER_MEGABYTE, time)
}

/// So many a minute; `None` where no time has passed.
pub fn per_minute(amount: f64, time: Duration) -> Option<f64> {
    (!time.is_zero()).then(|| amount / time.as_secs_f64() * SECONDS_PER_MINUTE)
}

/// What crawls came to of late.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Recent {
    /// Until now.
    pub window: Duration,
    /// Crawls that ended in it.
    pub ended: u64,
    /// Crawls' worth of work done in it by those that have ended, each by the part of its length that lies in it.
    pub done: f64,
    /// The mean length of those that ended in it.
    pub length: Duration,
    /// Crawls that began in `begun_window`.
    pub begun: u64,
    /// Until now, for `begun`.
    pub begun_window: Duration,
}

/// What is left of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Remaining {
    /// Sites that will be crawled and are not yet.
    pub waiting: u64,
    /// Of these, sites that have no agent yet.
    pub unassigned: u64,
    /// Sites that wait with a reason and go on only when somebody does something about it.
    pub held: u64,
    /// Crawls under way.
    pub crawling: u64,
    /// How long they have been, on average.
    pub crawling_for: Duration,
    /// The longest that one of the sites asked to be left alone for, from now.
    pub paused_for: Duration,
    /// Whether an agent is there.
    pub connected: bool,
}

/// How long it will still take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate {
    /// Until the last site has ended; `None` where nothing bears an estimate.
    pub left: Option<Duration>,
    /// Sites that it is about.
    pub sites: u64,
    /// Sites that it is not about.
    pub held: u64,
    /// Why there is none, and what is not in it; empty when nothing needs saying.
    pub note: String,
}

/// Estimates what is left. `None` when no site is.
///
/// It is the longer of two: the work of every site at the pace at which crawls did theirs of late, since slots may be scarce; and
/// one more crawl after the last site without an agent has begun, at the pace at which sites began of late, since what measures them
/// may be slow.
pub fn estimate(remaining: &Remaining, recent: &Recent) -> Option<Estimate> {
    let Remaining { waiting, held, crawling, .. } = *remaining;
    let sites = waiting.saturating_add(crawling);
    if sites == 0 && held == 0 {
        return None;
    }
    let left = left(remaining, recent);
    let none = left.err().map(str::to_owned);
    let waits = match held {
        0 => None,
        1 => Some("1 site waits with a reason and is not in the estimate".to_owned()),
        held => Some(format!("{held} sites wait with a reason and are not in the estimate")),
    };
    let note = none.into_iter().chain(waits).collect::<Vec<String>>().join("; ");
    Some(Estimate { left: left.ok(), sites, held, note })
}

fn left(remaining: &Remaining, recent: &Recent) -> Result<Duration, &'static str> {
    let Remaining { waiting, unassigned, crawling, crawling_for, paused_for, connected, .. } = *remaining;
    if waiting == 0 && crawling == 0 {
        return Err("no estimate: nothing is left but what waits");
    }
    if recent.ended == 0 {
        return Err("no estimate yet: nothing has ended");
    }
    if crawling == 0 && !connected {
        return Err("no estimate: no agent is connected");
    }
    let usual = recent.length.as_secs_f64().max(SHORTEST_S);
    let window = recent.window.as_secs_f64().max(SHORTEST_S);
    let age = crawling_for.as_secs_f64();
    let rest = (usual - age).max(usual.max(age) * OVERTIME);
    let done = recent.done.max(0.0) + count(crawling) * age.min(window) / (age + rest);
    let work = count(waiting) + count(crawling) * rest / (age + rest);
    let beginning = match (waiting, recent.begun) {
        (0, _) => rest,
        (_, 0) => usual,
        (_, begun) => count(unassigned) * recent.begun_window.as_secs_f64() / count(begun) + usual,
    };
    let at_this_pace = work * window / done.max(f64::MIN_POSITIVE);
    // A site that is left alone is crawled after that.
    let paused = if paused_for.is_zero() { 0.0 } else { paused_for.as_secs_f64() + usual };
    Ok(seconds(at_this_pace.max(beginning).max(paused)))
}

/// A length of time, at most [`LONGEST`].
fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST)
}

fn float(number: usize) -> f64 {
    count(u64::try_from(number).unwrap_or(u64::MAX))
}

/// Exact to 2^53, which no count here comes near but a hostile one.
fn count(number: u64) -> f64 {
    number as f64
}

/// The nearest whole number; of what is none, the nearest end.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a float saturates, as is meant"
)]
fn whole(amount: f64) -> u64 {
    amount.round() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Slices as the store makes them, of crawls (begin, end, bytes) in seconds.
    fn sliced(crawls: &[(f64, f64, f64)], width: f64, slices: usize) -> Vec<Slice> {
        let mut made = vec![Slice::default(); slices];
        for &(begun, ended, bytes) in crawls {
            let at = |time: f64| (0..slices - 1).take_while(|index| time >= float(index + 1) * width).count();
            let (first, last) = (at(begun), at(ended));
            made[last].ended += 1;
            if first == last {
                made[first].part.bytes += bytes;
                continue;
            }
            let rate = bytes / (ended - begun);
            made[first].part.bytes += rate * (float(first + 1) * width - begun);
            made[last].part.bytes += rate * (ended - float(last) * width);
            made[first + 1].step.bytes += rate * width;
            made[last].step.bytes -= rate * width;
        }
        made
    }

    #[test]
    fn a_long_crawl_is_no_spike() {
        let crawls = [(0.0, 100.0, 10e6), (15.0, 25.0, 2e6)];
        let total = Total { sites: 2, pages: 0, bytes: 12_000_000 };
        let grown = growth(&sliced(&crawls, 10.0, 10), secs(100), total);
        let megabytes: Vec<f64> = grown.iter().map(|slice| count(slice.total.bytes) / 1e6).collect();
        assert_eq!(megabytes, [1.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0]);
        assert_eq!((grown[2].total.sites, grown[9].total.sites), (1, 2));
        assert!((grown[1].megabytes_per_minute - 12.0).abs() < 1e-9, "{grown:?}");
        assert_eq!((grown[9].until, grown[2].sites_per_minute), (secs(100), 6.0));
    }

    #[test]
    fn no_time_has_no_rate() {
        assert_eq!(megabytes_per_minute(5, Duration::ZERO), None);
        assert_eq!(megabytes_per_minute(1_000_000, secs(30)), Some(2.0));
        let total = Total { sites: 1, pages: 1, bytes: 9 };
        let at_once = growth(&sliced(&[(0.0, 0.0, 9.0)], 0.0, 2), Duration::ZERO, total);
        assert_eq!((at_once[1].total, at_once[1].megabytes_per_minute), (total, 0.0));
    }

    const STEADY: Recent = Recent {
        window: Duration::from_secs(100),
        ended: 10,
        done: 10.0,
        length: Duration::from_secs(1),
        begun: 10,
        begun_window: Duration::from_secs(100),
    };

    #[test]
    fn what_waits_takes_as_long_as_what_ended_took() {
        let remaining = Remaining { waiting: 30, connected: true, ..Remaining::default() };
        let estimated = estimate(&remaining, &STEADY).unwrap();
        assert_eq!(estimated, Estimate { left: Some(secs(300)), sites: 30, held: 0, note: String::new() });
    }

    #[test]
    fn crawls_under_way_count_for_what_they_have_done_and_have_to_do() {
        // Four at once, each forty seconds long, since forty seconds ago: the first four have just ended.
        let recent =
            Recent { window: secs(40), ended: 4, done: 4.0, length: secs(40), begun: 8, begun_window: secs(40) };
        let remaining = Remaining { waiting: 4, crawling: 4, connected: true, ..Remaining::default() };
        assert_eq!(estimate(&remaining, &recent).unwrap().left, Some(secs(80)));
        // Half a minute later nothing more has ended, and the estimate has come nearer all the same.
        let recent = Recent { window: secs(70), ..recent };
        let remaining = Remaining { crawling_for: secs(30), ..remaining };
        assert_eq!(estimate(&remaining, &recent).unwrap().left, Some(secs(50)));
        // The last ones take long: a quarter of what they have taken is always left.
        let recent = Recent { window: secs(1000), ..recent };
        let remaining = Remaining { waiting: 0, crawling: 1, crawling_for: secs(900), ..remaining };
        assert!(estimate(&remaining, &recent).unwrap().left.unwrap() >= secs(225));
    }

    #[test]
    fn sites_that_are_slow_to_begin_are_waited_for() {
        // Many crawls went at once, and are done; a site begins every five seconds.
        let recent = Recent { done: 100.0, length: secs(7), begun: 20, begun_window: secs(100), ..STEADY };
        let remaining = Remaining { waiting: 40, unassigned: 30, connected: true, ..Remaining::default() };
        assert_eq!(estimate(&remaining, &recent).unwrap().left, Some(secs(157)));
    }

    #[test]
    fn what_cannot_be_estimated_says_why() {
        let note = |remaining: &Remaining, recent: &Recent| {
            let estimated = estimate(remaining, recent).unwrap();
            assert_eq!(estimated.left, None);
            estimated.note
        };
        let remaining = Remaining { waiting: 3, held: 1, connected: true, ..Remaining::default() };
        assert_eq!(
            note(&remaining, &Recent::default()),
            "no estimate yet: nothing has ended; 1 site waits with a reason and is not in the estimate"
        );
        let away = Remaining { waiting: 3, ..Remaining::default() };
        assert_eq!(note(&away, &STEADY), "no estimate: no agent is connected");
        let held = Remaining { held: 3, connected: true, ..Remaining::default() };
        assert_eq!(
            note(&held, &STEADY),
            "no estimate: nothing is left but what waits; 3 sites wait with a reason and are not in the estimate"
        );
        assert_eq!(estimate(&Remaining::default(), &STEADY), None);
    }

    #[test]
    fn a_site_that_is_left_alone_is_waited_for() {
        let remaining = Remaining { waiting: 1, paused_for: secs(3600), connected: true, ..Remaining::default() };
        assert!(estimate(&remaining, &STEADY).unwrap().left.unwrap() >= secs(3600));
    }

    fn times() -> impl Strategy<Value = Duration> {
        prop_oneof![Just(Duration::ZERO), Just(Duration::MAX), (0u64..1 << 40).prop_map(Duration::from_micros)]
    }

    fn counts() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), Just(u64::MAX), 0u64..1000]
    }

    proptest! {
        #[test]
        fn an_estimate_is_there_when_it_can_be_and_within_bounds(
            (waiting, unassigned, held, crawling, ended) in (counts(), counts(), counts(), counts(), counts()),
            (crawling_for, paused_for, window, length) in (times(), times(), times(), times()),
            (begun, begun_window) in (counts(), times()),
            done in prop_oneof![Just(0.0), Just(f64::NAN), 0.0..1e9],
            connected: bool,
        ) {
            let remaining = Remaining { waiting, unassigned, held, crawling, crawling_for, paused_for, connected };
            let recent = Recent { window, ended, done, length, begun, begun_window };
            match estimate(&remaining, &recent) {
                None => prop_assert!(waiting == 0 && crawling == 0 && held == 0),
                Some(Estimate { left: None, note, .. }) => {
                    prop_assert!(!note.is_empty());
                    let nothing = waiting == 0 && crawling == 0;
                    prop_assert!(nothing || ended == 0 || (crawling == 0 && !connected));
                }
                // A length of time is neither negative nor infinite; and it is one that clocks can bear.
                Some(Estimate { left: Some(left), .. }) => {
                    prop_assert!(left <= LONGEST && ended > 0 && waiting.saturating_add(crawling) > 0);
                    prop_assert!(waiting == 0 || left >= length.min(LONGEST).saturating_sub(Duration::from_nanos(1)));
                }
            }
        }

        #[test]
        fn more_sites_take_no_less_time(waiting in 1u64..1000, crawling in 0u64..100, age in 0u64..1000, ended in 1u64..100) {
            let recent = Recent { window: secs(500), ended, done: count(ended), length: secs(40), ..STEADY };
            let crawling_for = secs(age);
            let of = |waiting| {
                let remaining = Remaining { waiting, unassigned: waiting, crawling, crawling_for, connected: true, ..Remaining::default() };
                estimate(&remaining, &recent).unwrap().left.unwrap()
            };
            prop_assert!(of(waiting + 1) >= of(waiting));
        }

        #[test]
        fn growth_never_falls_and_ends_at_the_total(
            crawls in prop::collection::vec((0.0..100.0f64, 0.0..60.0f64, 0.0..1e7f64), 1..40), slices in 1usize..40,
        ) {
            let span = 160.0;
            let crawls: Vec<(f64, f64, f64)> = crawls.iter().map(|&(begun, took, bytes)| (begun, begun + took, bytes.round())).collect();
            let bytes = whole(crawls.iter().map(|crawl| crawl.2).sum());
            let total = Total { sites: u64::try_from(crawls.len()).unwrap(), pages: 0, bytes };
            let width = span / float(slices);
            let grown = growth(&sliced(&crawls, width, slices), secs(160), total);
            prop_assert_eq!(grown.last().unwrap().total, total);
            prop_assert!(grown.windows(2).all(|pair| pair[0].total.bytes <= pair[1].total.bytes && pair[0].total.sites <= pair[1].total.sites));
            // Each slice's end is what the crawls had brought by then.
            for (index, slice) in grown.iter().enumerate() {
                let time = width * float(index + 1);
                let by_then = |&(begun, ended, bytes): &(f64, f64, f64)| match ended - begun {
                    took if took > 0.0 => bytes * ((time - begun) / took).clamp(0.0, 1.0),
                    _ => if ended <= time { bytes } else { 0.0 },
                };
                let expected: f64 = crawls.iter().map(by_then).sum();
                prop_assert!((count(slice.total.bytes) - expected).abs() < 2.0, "{} {}", slice.total.bytes, expected);
            }
        }
    }
}
