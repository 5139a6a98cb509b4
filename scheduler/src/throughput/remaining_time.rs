//! The remaining time of a batch: the time until its last crawl, running or waiting, has ended. It
//! is estimated from the distribution of the batch's crawl durations.
//!
//! While crawls run, the crawls that have ended are mostly short ones, so their mean duration is
//! too short. Durations are therefore modelled by a Weibull distribution, whose shape and scale are
//! estimated by maximum likelihood. A running crawl is a censored sample (Cohen, "Maximum
//! likelihood estimation in the Weibull distribution based on complete and on censored samples",
//! Technometrics 7, 1965).

use std::time::Duration;

use crate::throughput::growth_and_rates::{LONGEST, count, seconds};

/// Minimum number of crawls for an estimate. The window of recent crawls is extended into the past
/// until it includes this number of ended crawls.
pub const FEWEST_RECENT: i64 = 10;
/// Maximum number of groups of waiting sites. The crawls of a group are assumed to begin all at
/// once.
const GROUPS: u64 = 32;
/// Number of bisection steps between a time and its double, for a precision of a thousandth.
const HALVINGS: u32 = 10;
/// Minimum number of concurrent crawls assumed, to prevent a division by zero.
const FEWEST_AT_ONCE: f64 = 1e-6;

/// Maximum number of stalled agents that the note names.
const NAMED: usize = 3;

/// The prior of the Weibull shape, between the shape of an exponential distribution (1) and the
/// shape of nearly equal durations (2 and more).
const PRIOR_SHAPE: f64 = 1.3;
/// The weight of the prior, as the inverse variance of the shape's logarithm. The prior weighs as
/// much as about ten crawls. Without the prior, the first few ended crawls would suggest that all
/// crawls end at about the same time.
const PRIOR_WEIGHT: f64 = 10.0;
/// The range of shapes. Above the range, all durations would be nearly equal. Below the range, they
/// would differ by many orders of magnitude.
const SHAPES: (f64, f64) = (0.2, 10.0);
/// Number of bisection steps over the logarithm of the range [`SHAPES`], for a precision of
/// a millionth.
const SHAPE_HALVINGS: u32 = 24;
/// Minimum duration, in seconds, which keeps logarithms finite.
const SHORTEST_S: f64 = 1e-3;
/// Number of evenly spaced quantiles, whose average approximates the mean duration.
const PARTS: u32 = 64;

/// The running crawls at one stalled agent: an agent that is paused or not connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StalledCrawls {
    pub agent: String,
    pub why: StallReason,
    pub sites: u64,
}

/// Why an agent is stalled. How long it will be stalled cannot be predicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StallReason {
    /// The agent paused itself, for this reason.
    Paused(String),
    /// The agent's stream broke. The agent may reconnect soon; otherwise its crawls go to
    /// other agents.
    Disconnected,
    /// The agent is no longer connected: its session has ended.
    Away,
}

/// The remaining sites of a batch.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Remaining {
    /// Number of sites whose crawls are still to begin.
    pub waiting: u64,
    /// Number of `waiting` sites without an agent.
    pub unassigned: u64,
    /// Number of sites that cannot be measured now, or whose hold does not end by itself (causes
    /// *unmet* and *breaker*). A site on hold for a pause or an address counts as `waiting`.
    pub held: u64,
    /// Number of running crawls, without stalled ones.
    pub crawling: u64,
    /// Stalled crawls by agent. The agent with the most crawls comes first.
    pub stalled: Vec<StalledCrawls>,
    /// The longest time until a requested pause of a site ends.
    pub paused_for: Duration,
    /// The time limit of a crawl.
    pub at_most: Duration,
    pub connected: bool,
    /// Whether any connected agent accepts new sites.
    pub taking: bool,
}

/// Statistics of recent crawls.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecentCrawls {
    /// Recent crawls, or a sample of recent crawls.
    pub crawls: Vec<BegunCrawl>,
    /// The ages of the running crawls, or of a sample of running crawls.
    pub under_way: Vec<Duration>,
    /// The mean number of concurrent crawls in the recent past.
    pub at_once: f64,
    /// Number of crawls that began within `begun_window`.
    pub begun: u64,
    /// The length of the time window of `begun`. The window ends now.
    pub begun_window: Duration,
}

/// The estimated remaining time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Estimate {
    /// The time until the last of the crawls ends; `None` if it cannot be estimated.
    pub left: Option<Duration>,
    /// Number of sites that the estimate includes.
    pub sites: u64,
    /// Number of sites on hold, which the estimate leaves out.
    pub held: u64,
    /// Number of sites at stalled agents, which the estimate leaves out.
    pub stalled: u64,
    /// Explains why there is no estimate, or what the estimate leaves out; empty if the estimate
    /// includes all sites.
    pub note: String,
}

/// Estimates the remaining time. `None` if no site remains.
///
/// The result is the time within which all running and waiting crawls end with a probability of one
/// half. Waiting crawls are assumed to begin at a constant rate: the number of concurrent crawls
/// (the present or the recent number, whichever is higher), divided by the mean duration.
///
/// Crawls of sites without an agent may begin more slowly, because these sites may have to be
/// measured first. These crawls are assumed to begin at most as fast as crawls have begun recently.
pub fn estimate(remaining: &Remaining, recent: &RecentCrawls) -> Option<Estimate> {
    let &Remaining { waiting, held, crawling, ref stalled, .. } = remaining;
    let sites = waiting.saturating_add(crawling);
    let still = stalled.iter().fold(0_u64, |sum, one| sum.saturating_add(one.sites));
    if sites == 0 && held == 0 && still == 0 {
        return None;
    }
    let left = left(remaining, recent);
    let none = left.err().map(str::to_owned);
    let waits = match held {
        0 => None,
        1 => Some("1 site is held back and is not in the estimate".to_owned()),
        held => Some(format!("{held} sites are held back and are not in the estimate")),
    };
    let note = none.into_iter().chain(stands_still(stalled, still)).chain(waits).collect::<Vec<String>>().join("; ");
    Some(Estimate { left: left.ok(), sites, held, stalled: still, note })
}

/// Describes the stalled crawls: "3 sites are at a, which has disconnected, and are not in
/// the estimate".
fn stands_still(stalled: &[StalledCrawls], sites: u64) -> Option<String> {
    let at = match stalled {
        [] => return None,
        [StalledCrawls { agent, why, .. }] => match why {
            StallReason::Paused(reason) => format!("{agent}, which has paused ({reason}),"),
            StallReason::Disconnected => format!("{agent}, which has disconnected,"),
            StallReason::Away => format!("{agent}, which is away,"),
        },
        several => {
            let named = several.iter().take(NAMED).map(|StalledCrawls { agent, why, .. }| match why {
                StallReason::Paused(_) => format!("{agent}: paused"),
                StallReason::Disconnected => format!("{agent}: disconnected"),
                StallReason::Away => format!("{agent}: away"),
            });
            let more = several.len().saturating_sub(NAMED);
            let more = (more > 0).then(|| format!("and {more} more"));
            let named: Vec<String> = named.chain(more).collect();
            format!("{} agents that have stopped ({})", several.len(), named.join(", "))
        }
    };
    Some(match sites {
        1 => format!("1 site is at {at} and is not in the estimate"),
        sites => format!("{sites} sites are at {at} and are not in the estimate"),
    })
}

fn left(remaining: &Remaining, recent: &RecentCrawls) -> Result<Duration, &'static str> {
    let &Remaining { waiting, unassigned, crawling, paused_for, at_most, connected, taking, .. } = remaining;
    if waiting == 0 && crawling == 0 {
        return Err("no estimate: only waiting sites remain");
    }
    if waiting > 0 && !connected {
        return Err("no estimate: no agent is connected");
    }
    if waiting > 0 && !taking {
        return Err("no estimate: no agent takes new sites, because each is paused, disconnected or draining");
    }
    let lengths = DurationDistribution::of(&recent.crawls, at_most).ok_or("no estimate yet: no site has ended")?;
    let usual = lengths.mean_s();
    let at_once = count(crawling).max(recent.at_once).max(FEWEST_AT_ONCE);
    let measured = match recent.begun {
        0 => 0.0,
        begun => count(unassigned) * recent.begun_window.as_secs_f64() / count(begun),
    };
    let begins = (count(waiting) * usual / at_once).max(measured);
    let left = UnendedCrawls { lengths, begins, waiting, crawling, under_way: &recent.under_way };
    // A paused site is crawled after its pause. Its crawl is assumed to take the mean duration.
    let paused = if paused_for.is_zero() { 0.0 } else { paused_for.as_secs_f64() + usual };
    Ok(seconds(left.median_s().max(paused)))
}

/// The crawls that have not ended, and the distribution of their durations.
struct UnendedCrawls<'a> {
    lengths: DurationDistribution,
    /// The time until the last waiting crawl begins, in seconds.
    begins: f64,
    waiting: u64,
    crawling: u64,
    /// The ages of a sample of the running crawls. The sample represents all running crawls.
    under_way: &'a [Duration],
}

impl UnendedCrawls<'_> {
    /// The time in seconds within which all crawls end with a probability of one half.
    fn median_s(&self) -> f64 {
        let longest = LONGEST.as_secs_f64();
        let mut late = 1e-3;
        while !self.all_end_within(late) && late < longest {
            late *= 2.0;
        }
        let mut early = late / 2.0;
        for _ in 0..HALVINGS {
            let middle = f64::midpoint(early, late);
            if self.all_end_within(middle) {
                late = middle;
            } else {
                early = middle;
            }
        }
        late
    }

    fn all_end_within(&self, time: f64) -> bool {
        let under_way = self.under_way.iter().map(|age| self.lengths.ends_within(time, age.as_secs_f64()));
        let told = u64::try_from(self.under_way.len()).unwrap_or(u64::MAX);
        let stand_for = count(self.crawling.max(told)) / count(told.max(1));
        let groups = self.waiting.min(GROUPS);
        let begins = |group: u64| self.begins * count(group + 1) / count(groups);
        let to_come = (0..groups).map(|group| self.lengths.ends_within(time - begins(group), 0.0));
        let each = count(self.waiting) / count(groups.max(1));
        under_way.sum::<f64>() * stand_for + to_come.sum::<f64>() * each >= -std::f64::consts::LN_2
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunCrawl {
    /// The duration of the crawl, or its age if it has not ended.
    pub time: Duration,
    pub ended: bool,
}

/// The distribution of crawl durations. The share of crawls that take longer than `t` is `exp(-(t /
/// scale)^shape)`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct DurationDistribution {
    shape: f64,
    /// In seconds.
    scale: f64,
    /// Time limit of a crawl, in seconds.
    at_most: f64,
}

impl DurationDistribution {
    /// Estimates the distribution from a sample of crawls, and from the time limit of a crawl.
    /// Returns `None` if no crawl has ended.
    fn of(crawls: &[BegunCrawl], at_most: Duration) -> Option<Self> {
        let seconds = |one: &BegunCrawl| one.time.as_secs_f64().max(SHORTEST_S);
        let longest = crawls.iter().map(seconds).fold(SHORTEST_S, f64::max);
        // Durations are relative to the longest one, so that no power overflows.
        let logs: Vec<f64> = crawls.iter().map(|one| (seconds(one) / longest).ln()).collect();
        let of_ended = logs.iter().zip(crawls).filter(|(_, one)| one.ended);
        let (ended, sum) = of_ended.fold((0.0, 0.0), |(ended, sum), (log, _)| (ended + 1.0, sum + log));
        if ended < 1.0 {
            return None;
        }
        let powers = |shape: f64| {
            let power = |(sum, weighted): (f64, f64), log: &f64| {
                let power = (shape * log).exp();
                (sum + power, weighted + power * log)
            };
            logs.iter().fold((0.0, 0.0), power)
        };
        // Whether the logarithm of the posterior density rises with the shape. Each shape is
        // combined with the scale that is most likely for that shape.
        let rises = |shape: f64| {
            let (all, weighted) = powers(shape);
            let prior = PRIOR_WEIGHT * (shape / PRIOR_SHAPE).ln() / shape;
            ended / shape + sum - ended * weighted / all - prior > 0.0
        };
        let (mut low, mut high) = SHAPES;
        for _ in 0..SHAPE_HALVINGS {
            let middle = (low * high).sqrt();
            if rises(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        let shape = (low * high).sqrt();
        let (all, _) = powers(shape);
        let scale = longest * (all / ended).powf(shape.recip());
        Some(Self { shape, scale, at_most: at_most.as_secs_f64() })
    }

    /// The mean duration, in seconds.
    fn mean_s(&self) -> f64 {
        let parts = f64::from(PARTS);
        let longer = |part: u32| (f64::from(part) + 0.5) / parts;
        let one = |part: u32| self.scale * (-longer(part).ln()).powf(self.shape.recip());
        (0..PARTS).map(|part| one(part).min(self.at_most)).sum::<f64>() / parts
    }

    /// The logarithm of the probability that a crawl of age `age` ends within `time`;
    /// both in seconds.
    fn ends_within(&self, time: f64, age: f64) -> f64 {
        if time <= 0.0 {
            return f64::NEG_INFINITY;
        }
        if age + time >= self.at_most {
            return 0.0;
        }
        let hazard = |time: f64| (time / self.scale).powf(self.shape);
        let lasts = (hazard(age) - hazard(age + time)).exp_m1();
        // If rounding makes both hazards equal, the probability is zero.
        (-lasts).max(0.0).ln()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn secs(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Ended crawls with these durations, in seconds.
    fn ended(lasted: &[f64]) -> Vec<BegunCrawl> {
        lasted.iter().map(|time| BegunCrawl { time: secs(*time), ended: true }).collect()
    }

    /// A batch without remaining sites, with a connected agent and a time limit of an hour.
    fn some_left() -> Remaining {
        Remaining { at_most: secs(3600.0), connected: true, taking: true, ..Remaining::default() }
    }

    fn left_s(remaining: &Remaining, recent: &RecentCrawls) -> f64 {
        estimate(remaining, recent).unwrap().left.unwrap().as_secs_f64()
    }

    #[test]
    fn what_waits_takes_its_turn_and_the_last_one_ends() {
        // The durations are equal, and four crawls run at once.
        let recent = RecentCrawls { crawls: ended(&[10.0; 400]), at_once: 4.0, ..RecentCrawls::default() };
        let estimated = estimate(&Remaining { waiting: 40, held: 2, ..some_left() }, &recent).unwrap();
        assert_eq!((estimated.sites, estimated.held), (40, 2));
        assert_eq!(estimated.note, "2 sites are held back and are not in the estimate");
        let left = estimated.left.unwrap().as_secs_f64();
        assert!((100.0..115.0).contains(&left), "{left}");
        // With eight crawls at once, the time is half as long.
        let under_way = vec![Duration::ZERO; 8];
        let left =
            left_s(&Remaining { waiting: 40, crawling: 8, ..some_left() }, &RecentCrawls { under_way, ..recent });
        assert!((50.0..65.0).contains(&left), "{left}");
    }

    #[test]
    fn of_many_crawls_under_way_the_longest_is_waited_for() {
        // Ten of a hundred crawls that began together have ended, so the others take longer.
        let short: Vec<f64> = (1..=10).map(f64::from).collect();
        let mut crawls = ended(&short);
        crawls.extend([BegunCrawl { time: secs(10.0), ended: false }; 90]);
        let recent = RecentCrawls { crawls, under_way: vec![secs(10.0); 90], at_once: 90.0, ..RecentCrawls::default() };
        let all = left_s(&Remaining { crawling: 90, ..some_left() }, &recent);
        assert!(all > 100.0, "{all}");
        let one = RecentCrawls { under_way: vec![secs(10.0)], ..recent.clone() };
        let one = left_s(&Remaining { crawling: 1, ..some_left() }, &one);
        assert!(one < all / 2.0, "{one} {all}");
        // Here the time limit is a minute, of which ten seconds have passed.
        let cut = left_s(&Remaining { crawling: 90, at_most: secs(60.0), ..some_left() }, &recent);
        assert!((49.0..50.1).contains(&cut), "{cut}");
    }

    #[test]
    fn a_few_of_many_stand_for_all() {
        let recent = RecentCrawls { crawls: ended(&[5.0, 10.0, 15.0, 20.0]), ..RecentCrawls::default() };
        let of = |told: usize| {
            let recent = RecentCrawls { under_way: vec![secs(3.0); told], ..recent.clone() };
            left_s(&Remaining { crawling: 1000, ..some_left() }, &recent)
        };
        assert!((of(10) / of(1000) - 1.0).abs() < 0.01, "{} {}", of(10), of(1000));
    }

    #[test]
    fn sites_that_are_slow_to_begin_are_waited_for() {
        // Here a crawl begins every five seconds.
        let recent = RecentCrawls {
            crawls: ended(&[7.0; 100]),
            at_once: 1.4,
            begun: 20,
            begun_window: secs(100.0),
            under_way: Vec::new(),
        };
        let left = left_s(&Remaining { waiting: 40, unassigned: 30, ..some_left() }, &recent);
        assert!((185.0..215.0).contains(&left), "{left}");
        let many = RecentCrawls { at_once: 100.0, ..recent };
        let left = left_s(&Remaining { waiting: 40, unassigned: 30, ..some_left() }, &many);
        assert!((154.0..165.0).contains(&left), "{left}");
    }

    #[test]
    fn what_cannot_be_estimated_says_why() {
        let note = |remaining: &Remaining, recent: &RecentCrawls| {
            let estimated = estimate(remaining, recent).unwrap();
            assert_eq!(estimated.left, None);
            estimated.note
        };
        let steady = RecentCrawls { crawls: ended(&[1.0; 10]), at_once: 1.0, ..RecentCrawls::default() };
        let remaining = Remaining { waiting: 3, held: 1, ..some_left() };
        assert_eq!(
            note(&remaining, &RecentCrawls::default()),
            "no estimate yet: no site has ended; 1 site is held back and is not in the estimate"
        );
        let away = Remaining { waiting: 3, connected: false, taking: false, ..some_left() };
        assert_eq!(note(&away, &steady), "no estimate: no agent is connected");
        let still = Remaining { waiting: 3, taking: false, ..some_left() };
        assert_eq!(
            note(&still, &steady),
            "no estimate: no agent takes new sites, because each is paused, disconnected or draining"
        );
        let held = Remaining { held: 3, ..some_left() };
        assert_eq!(
            note(&held, &steady),
            "no estimate: only waiting sites remain; 3 sites are held back and are not in the estimate"
        );
        assert_eq!(estimate(&Remaining::default(), &steady), None);
        let paused = Remaining { waiting: 1, paused_for: secs(3600.0), ..some_left() };
        assert!(left_s(&paused, &steady) >= 3600.0, "a site that is left alone is waited for");
    }

    #[test]
    fn crawls_of_agents_that_stand_still_are_told_and_not_waited_for() {
        let steady = RecentCrawls { crawls: ended(&[1.0; 10]), at_once: 1.0, ..RecentCrawls::default() };
        let at = |agent: &str, why, sites| StalledCrawls { agent: agent.into(), why, sites };
        let full = at("a", StallReason::Paused("the disk is full".into()), 14);
        let of = |stalled: &[StalledCrawls], crawling| {
            estimate(&Remaining { crawling, stalled: stalled.to_vec(), ..some_left() }, &steady).unwrap()
        };
        let alone = of(std::slice::from_ref(&full), 0);
        assert_eq!((alone.left, alone.sites, alone.stalled), (None, 0, 14));
        assert_eq!(
            alone.note,
            "no estimate: only waiting sites remain; 14 sites are at a, which has paused (the disk is full), and are not in \
             the estimate"
        );
        let disconnected = of(&[at("b", StallReason::Disconnected, 1)], 2);
        assert!(disconnected.left.is_some());
        assert_eq!(disconnected.note, "1 site is at b, which has disconnected, and is not in the estimate");
        let away = |name| at(name, StallReason::Away, 1);
        let many = of(&[full, at("b", StallReason::Disconnected, 2), away("c"), away("d"), away("e")], 2);
        assert_eq!(
            many.note,
            "19 sites are at 5 agents that have stopped (a: paused, b: disconnected, c: away, and 2 more) and are not \
             in the estimate"
        );
    }

    fn times() -> impl Strategy<Value = Duration> {
        prop_oneof![Just(Duration::ZERO), Just(Duration::MAX), (0u64..1 << 40).prop_map(Duration::from_micros)]
    }

    fn counts() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), Just(u64::MAX), 0u64..1000]
    }

    fn lasted() -> impl Strategy<Value = Vec<BegunCrawl>> {
        prop::collection::vec((times(), any::<bool>()).prop_map(|(time, ended)| BegunCrawl { time, ended }), 0..20)
    }

    proptest! {
        #[test]
        fn an_estimate_is_there_when_it_can_be_and_within_bounds(
            (waiting, unassigned, held, crawling, begun) in (counts(), counts(), counts(), counts(), counts()),
            (paused_for, at_most, begun_window) in (times(), times(), times()),
            crawls in lasted(),
            under_way in prop::collection::vec(times(), 0..20),
            at_once in prop_oneof![Just(0.0), Just(f64::NAN), 0.0..1e9],
            (connected, taking) in (any::<bool>(), any::<bool>()),
            still in counts(),
        ) {
            let stalled = vec![StalledCrawls { agent: "a".into(), why: StallReason::Away, sites: still }];
            let remaining = Remaining {
                waiting, unassigned, held, crawling, stalled, paused_for, at_most, connected, taking,
            };
            let ended = crawls.iter().any(|one| one.ended);
            let recent = RecentCrawls { crawls, under_way, at_once, begun, begun_window };
            match estimate(&remaining, &recent) {
                None => prop_assert!(waiting == 0 && crawling == 0 && held == 0 && still == 0),
                Some(Estimate { left: None, note, .. }) => {
                    prop_assert!(!note.is_empty());
                    let nothing = waiting == 0 && crawling == 0;
                    prop_assert!(nothing || !ended || (waiting > 0 && !(connected && taking)));
                }
                Some(Estimate { left: Some(left), .. }) => {
                    prop_assert!(left <= LONGEST && ended && waiting.saturating_add(crawling) > 0);
                }
            }
        }

        #[test]
        fn more_sites_take_no_less_time(
            waiting in 0u64..200, crawling in 0usize..50, age in 0.0..1000.0_f64,
            lengths in prop::collection::vec(0.1..500.0_f64, 1..30),
        ) {
            let recent = RecentCrawls { crawls: ended(&lengths), under_way: vec![secs(age); crawling], at_once: 3.0, ..RecentCrawls::default() };
            let crawling = u64::try_from(crawling).unwrap();
            let of = |waiting| left_s(&Remaining { waiting, unassigned: waiting, crawling, ..some_left() }, &recent);
            // The bisection in `median_s` is precise only to a thousandth.
            prop_assert!(of(waiting + 2) >= of(waiting + 1) * 0.998, "{} {}", of(waiting + 2), of(waiting + 1));
        }
    }

    const HOUR: Duration = Duration::from_secs(3600);

    /// A thousand durations with this shape and scale, observed `now` seconds after all
    /// crawls began.
    fn seen(shape: f64, scale: f64, now: f64) -> Vec<BegunCrawl> {
        let length = |part: u32| scale * (-((f64::from(part) + 0.5) / 1000.0).ln()).powf(shape.recip());
        let one = |length: f64| BegunCrawl { time: Duration::from_secs_f64(length.min(now)), ended: length <= now };
        (0..1000).map(|part| one(length(part))).collect()
    }

    #[test]
    fn lengths_are_told_while_most_crawls_are_under_way() {
        for (shape, scale) in [(0.7, 20.0), (1.0, 5.0), (2.0, 60.0)] {
            for (ended, near) in [(0.1_f64, 0.25), (0.5, 0.1), (1.0 - 1e-9, 0.05)] {
                let now = scale * (-(1.0 - ended).ln()).powf(1.0 / shape);
                let lengths = DurationDistribution::of(&seen(shape, scale, now), HOUR).unwrap();
                let off = (lengths.shape / shape - 1.0).abs().max((lengths.scale / scale - 1.0).abs());
                assert!(off < near, "{shape} {scale} {ended}: {lengths:?}");
            }
        }
    }

    #[test]
    fn the_mean_is_of_all_and_none_lasts_longer_than_it_may() {
        let lengths = DurationDistribution { shape: 1.0, scale: 10.0, at_most: 3600.0 };
        assert!((lengths.mean_s() - 10.0).abs() < 0.1, "{}", lengths.mean_s());
        let cut = DurationDistribution { at_most: 10.0, ..lengths };
        // The expected mean is (1 - 1/e) times ten seconds.
        assert!((cut.mean_s() - 6.32).abs() < 0.1, "{}", cut.mean_s());
        assert_eq!((cut.ends_within(4.0, 6.0), cut.ends_within(1.0, 60.0)), (0.0, 0.0));
        // With shape 1 the distribution is memoryless, so the age does not matter.
        let half = 10.0 * 2.0_f64.ln();
        assert!((lengths.ends_within(half, 0.0).exp() - 0.5).abs() < 1e-9);
        assert!((lengths.ends_within(half, 50.0).exp() - 0.5).abs() < 1e-9);
        assert_eq!(lengths.ends_within(0.0, 5.0), f64::NEG_INFINITY);
    }

    #[test]
    fn nothing_is_told_before_one_has_ended() {
        assert_eq!(DurationDistribution::of(&[], HOUR), None);
        assert_eq!(DurationDistribution::of(&[BegunCrawl { time: HOUR, ended: false }; 5], HOUR), None);
    }

    proptest! {
        #[test]
        fn whatever_lasted_has_a_mean_and_ends(
            crawls in prop::collection::vec((prop_oneof![Just(0), Just(u64::MAX), 0_u64..1 << 40], any::<bool>()), 1..40),
            at_most in prop_oneof![Just(0), Just(u64::MAX), 0_u64..1 << 40],
            age in 0.0..1e9_f64,
        ) {
            let lasted = |(micros, ended)| BegunCrawl { time: Duration::from_micros(micros), ended };
            let crawls: Vec<BegunCrawl> = crawls.into_iter().map(lasted).collect();
            if let Some(lengths) = DurationDistribution::of(&crawls, Duration::from_micros(at_most)) {
                prop_assert!(lengths.mean_s() >= 0.0 && lengths.mean_s() <= lengths.at_most * 1.000_001, "{lengths:?}");
                let within: Vec<f64> = [0.0, 1.0, 1e3, 1e6].map(|time| lengths.ends_within(time, age)).to_vec();
                prop_assert!(within.iter().all(|one| *one <= 0.0) && within.is_sorted(), "{lengths:?} {within:?}");
            }
        }
    }
}
