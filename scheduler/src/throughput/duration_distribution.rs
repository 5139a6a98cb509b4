//! The distribution of a batch's crawl durations, estimated from ended and running crawls.
//!
//! While crawls run, the crawls that have ended are mostly short ones, so their mean duration is
//! too short. Durations are therefore modelled by a Weibull distribution, whose shape and scale are
//! estimated by maximum likelihood. A running crawl is a censored sample (Cohen, "Maximum
//! likelihood estimation in the Weibull distribution based on complete and on censored samples",
//! Technometrics 7, 1965).

use std::time::Duration;

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
const HALVINGS: u32 = 24;
/// Minimum duration, in seconds, which keeps logarithms finite.
const SHORTEST_S: f64 = 1e-3;
/// Number of evenly spaced quantiles, whose average approximates the mean duration.
const PARTS: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BegunCrawl {
    /// The duration of the crawl, or its age if it has not ended.
    pub time: Duration,
    pub ended: bool,
}

/// The distribution of crawl durations. The share of crawls that take longer than `t` is `exp(-(t /
/// scale)^shape)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DurationDistribution {
    shape: f64,
    /// In seconds.
    scale: f64,
    /// Time limit of a crawl, in seconds.
    at_most: f64,
}

impl DurationDistribution {
    /// Estimates the distribution from a sample of crawls, and from the time limit of a crawl.
    /// Returns `None` if no crawl has ended.
    pub(super) fn of(crawls: &[BegunCrawl], at_most: Duration) -> Option<Self> {
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
        for _ in 0..HALVINGS {
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
    pub(super) fn mean_s(&self) -> f64 {
        let parts = f64::from(PARTS);
        let longer = |part: u32| (f64::from(part) + 0.5) / parts;
        let one = |part: u32| self.scale * (-longer(part).ln()).powf(self.shape.recip());
        (0..PARTS).map(|part| one(part).min(self.at_most)).sum::<f64>() / parts
    }

    /// The logarithm of the probability that a crawl of age `age` ends within `time`;
    /// both in seconds.
    pub(super) fn ends_within(&self, time: f64, age: f64) -> f64 {
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
