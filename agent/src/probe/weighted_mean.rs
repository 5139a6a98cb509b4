//! The statistical weighted mean of a host's samples (section 2.2.1 of the paper, which the README
//! cites). This module is pure.
//!
//! The published rule chooses a bin width from the distribution of the samples, divides each sample
//! by this width, and rounds down. The result is the mean of all samples in the three most frequent
//! bins. Applied literally, the rule fails if most samples are close together. Samples that are
//! close together fill only one or two bins, so the third most frequent bin contains a spike.
//! Therefore samples outside the median ± 3 scaled MAD are dropped first. If there are too few
//! samples for bins, the result is the median.
//!
//! The bin width follows the rule of Freedman and Diaconis: twice the interquartile range, divided
//! by the cube root of the number of samples. The bin width hardly changes if a fifth of the
//! samples are spikes. All values are integer nanoseconds. Among equally frequent bins, the bin
//! nearest to the median ranks first; at equal distance, the bin of smaller values ranks first. So
//! the result does not depend on the order of the samples.

use std::collections::BTreeMap;
use std::time::Duration;

/// Minimum number of samples for bins. With only seven samples, the three fullest bins have two or
/// three samples each, so chance decides which bins are the fullest.
pub const FEWEST_FOR_BINS: usize = 8;
/// Maximum distance of a used sample from the median, in scaled MADs.
const KEPT_MADS: u128 = 3;
/// For normally distributed samples, the ratio of their standard deviation to their MAD, in
/// ten-thousandths.
const MAD_SCALE: u128 = 14_826;
/// Number of most frequent bins whose samples are averaged.
const KEPT_QUOTIENTS: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleSummary {
    pub rtt: Duration,
    pub min: Duration,
    pub median: Duration,
    pub spread: Duration,
    /// Number of samples within three scaled MADs of the median.
    pub kept: u32,
}

/// Summarises samples; `None` if there are none.
pub fn weighted_mean(samples: &[Duration]) -> Option<SampleSummary> {
    let sorted = sorted_nanos(samples);
    let median = median_of(&sorted)?;
    let spread = scaled_mad(&sorted, median);
    let near: Vec<u128> =
        sorted.iter().copied().filter(|sample| sample.abs_diff(median) <= KEPT_MADS * spread).collect();
    let rtt = if near.len() < FEWEST_FOR_BINS { median } else { most_frequent_mean(&near).unwrap_or(median) };
    Some(SampleSummary {
        rtt: nanos(rtt),
        min: nanos(*sorted.first()?),
        median: nanos(median),
        spread: nanos(spread),
        kept: u32::try_from(near.len()).unwrap_or(u32::MAX),
    })
}

/// The published rule, which does not drop samples first. Computed only for comparison.
pub fn literal(samples: &[Duration]) -> Option<Duration> {
    most_frequent_mean(&sorted_nanos(samples)).map(nanos)
}

/// The median. For an even number of samples, this is the mean of the two middle samples.
pub fn median(samples: &[Duration]) -> Option<Duration> {
    median_of(&sorted_nanos(samples)).map(nanos)
}

pub fn mean(samples: &[Duration]) -> Option<Duration> {
    mean_of(&sorted_nanos(samples)).map(nanos)
}

/// Averages the samples in the three most frequent bins.
fn most_frequent_mean(sorted: &[u128]) -> Option<u128> {
    let median = median_of(sorted)?;
    let width = bin_width(sorted);
    if width == 0 {
        return Some(median);
    }
    let mut bins: BTreeMap<u128, Vec<u128>> = BTreeMap::new();
    for sample in sorted {
        bins.entry(sample / width).or_default().push(*sample);
    }
    let mut bins: Vec<(u128, Vec<u128>)> = bins.into_iter().collect();
    bins.sort_by_key(|(quotient, held)| (std::cmp::Reverse(held.len()), quotient.abs_diff(median / width), *quotient));
    let kept: Vec<u128> = bins.into_iter().take(KEPT_QUOTIENTS).flat_map(|(_, held)| held).collect();
    mean_of(&kept)
}

/// The bin width of Freedman and Diaconis; zero if at least half of the samples are equal.
fn bin_width(sorted: &[u128]) -> u128 {
    let quartile = |numerator: usize| sorted.get((sorted.len().saturating_sub(1)) * numerator / 4).copied();
    let (Some(lower), Some(upper)) = (quartile(1), quartile(3)) else { return 0 };
    let count = f64::from(u32::try_from(sorted.len()).unwrap_or(u32::MAX));
    nanos(upper - lower).mul_f64(2.0 / count.cbrt()).as_nanos()
}

fn scaled_mad(sorted: &[u128], median: u128) -> u128 {
    let mut deviations: Vec<u128> = sorted.iter().map(|sample| sample.abs_diff(median)).collect();
    deviations.sort_unstable();
    median_of(&deviations).unwrap_or(0) * MAD_SCALE / 10_000
}

fn sorted_nanos(samples: &[Duration]) -> Vec<u128> {
    let mut sorted: Vec<u128> = samples.iter().map(Duration::as_nanos).collect();
    sorted.sort_unstable();
    sorted
}

fn median_of(sorted: &[u128]) -> Option<u128> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    Some(u128::midpoint(*sorted.get(middle.checked_sub(1)?)?, upper))
}

fn mean_of(samples: &[u128]) -> Option<u128> {
    samples.iter().sum::<u128>().checked_div(u128::try_from(samples.len()).ok()?)
}

fn nanos(value: u128) -> Duration {
    Duration::from_nanos(u64::try_from(value).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn millis(values: &[u64]) -> Vec<Duration> {
        values.iter().copied().map(Duration::from_millis).collect()
    }

    #[test]
    fn no_samples_have_no_mean() {
        assert_eq!(weighted_mean(&[]), None);
        assert_eq!(literal(&[]), None);
    }

    #[test]
    fn degenerate_samples_are_their_own_mean() {
        for values in [&[7][..], &[7, 7], &[7; 30], &[7, 7, 7, 7, 7, 7, 7, 7, 7, 900]] {
            let summary = weighted_mean(&millis(values)).unwrap();
            assert_eq!(summary.rtt, Duration::from_millis(7), "{values:?}");
            assert_eq!(summary.spread, Duration::ZERO);
        }
        assert_eq!(weighted_mean(&[Duration::ZERO; 9]).unwrap().rtt, Duration::ZERO);
        assert_eq!(weighted_mean(&[Duration::MAX; 9]).unwrap().rtt, Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn too_few_samples_for_bins_give_the_median() {
        let summary = weighted_mean(&millis(&[50, 51, 52, 53, 3_000])).unwrap();
        assert_eq!(summary.rtt, Duration::from_millis(52));
        assert_eq!(summary.min, Duration::from_millis(50));
        assert_eq!(weighted_mean(&millis(&[50, 52])).unwrap().rtt, Duration::from_millis(51));
    }

    #[test]
    fn spikes_move_the_literal_rule_only() {
        let samples = millis(&[100, 100, 100, 100, 100, 101, 101, 101, 101, 101, 101, 101, 900, 1_700]);
        let ours = weighted_mean(&samples).unwrap().rtt;
        assert!(ours.abs_diff(Duration::from_micros(100_500)) < Duration::from_millis(1), "{ours:?}");
        assert!(literal(&samples).unwrap() > Duration::from_millis(120));
    }

    proptest! {
        #[test]
        fn the_mean_lies_among_the_samples_and_ignores_their_order(mut values in prop::collection::vec(1_u64..5_000_000, 1..60)) {
            let samples: Vec<Duration> = values.iter().copied().map(Duration::from_micros).collect();
            let summary = weighted_mean(&samples).unwrap();
            prop_assert!(summary.rtt >= summary.min && summary.rtt <= *samples.iter().max().unwrap());
            values.reverse();
            let turned: Vec<Duration> = values.iter().copied().map(Duration::from_micros).collect();
            prop_assert_eq!(weighted_mean(&turned).unwrap(), summary);
        }
    }
}
