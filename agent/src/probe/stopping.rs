//! Decides when there are enough samples. Pure.
//!
//! The rule is sequential: after each answered sample, stop when the standard error of the result
//! is within [`RELATIVE_ERROR`] of it, or within [`ABSOLUTE_ERROR`]. It is the standard error of a
//! median of normally distributed samples, √(π/2) · s / √n, where s is the scaled MAD and n the
//! number of samples within three of it. The weighted mean falls back to the median for few
//! samples, and is more exact for many. Spikes widen the MAD, so a host whose samples disagree gets
//! more requests, and one whose first samples agree gets no more: two spikes seldom agree with each
//! other.
//!
//! Sequential stopping at a given precision: Chow and Robbins, "On the asymptotic theory of
//! fixed-width sequential confidence intervals for the mean" (1965). `weighted_mean::trial` shows
//! what it saves and costs.

use std::time::Duration;

use super::weighted_mean::weighted_mean;

/// A round trip this exact suffices: the map itself has a median error of 5 %, and errors of
/// several probers average out. Half of it needs 80 % more samples in the trial and brings the same
/// share within 5 %.
pub const RELATIVE_ERROR: f64 = 0.02;
/// A smaller difference does not matter for the choice of an agent; it is also the resolution of a
/// user-space timer.
pub const ABSOLUTE_ERROR: Duration = Duration::from_micros(250);
/// Fewer samples have no meaningful spread: of two, neither can be outvoted.
pub const FEWEST: u32 = 3;
/// The standard error of a median in those of a mean, √(π/2), for normally distributed samples.
const MEDIAN_TO_MEAN: f64 = 1.2533;

/// Whether at least `least` samples (and [`FEWEST`]) determine their weighted mean well enough to
/// stop.
pub fn is_stable(samples: &[Duration], least: u32) -> bool {
    let taken = u32::try_from(samples.len()).unwrap_or(u32::MAX);
    if taken < least.max(FEWEST) {
        return false;
    }
    let Some(summary) = weighted_mean(samples) else { return false };
    let root = f64::from(summary.kept.max(1)).sqrt();
    let error = summary.spread.mul_f64(MEDIAN_TO_MEAN / root);
    error <= ABSOLUTE_ERROR.max(summary.rtt.mul_f64(RELATIVE_ERROR))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stable(micros: &[u64], least: u32) -> bool {
        let samples: Vec<Duration> = micros.iter().copied().map(Duration::from_micros).collect();
        is_stable(&samples, least)
    }

    #[test]
    fn samples_that_agree_are_enough_once_there_are_three() {
        assert!(!stable(&[], 0));
        assert!(!stable(&[50_000, 50_000], 0));
        assert!(stable(&[50_000, 50_400, 49_700], 0));
        assert!(!stable(&[50_000, 50_400, 49_700], 4), "the order wants four");
    }

    #[test]
    fn samples_that_disagree_are_not_enough() {
        assert!(!stable(&[50_000, 50_100, 900_000, 1_700_000], 3));
        assert!(!stable(&[50_000, 70_000, 90_000], 3));
    }

    #[test]
    fn one_spike_is_outvoted_by_samples_that_agree() {
        assert!(stable(&[50_000, 900_000, 50_300, 49_800], 3));
    }

    #[test]
    fn near_hosts_are_measured_to_a_quarter_of_a_millisecond_and_no_finer() {
        assert!(stable(&[900, 1_100, 1_000], 3), "10 %, but far below what matters");
        assert!(!stable(&[1_000, 3_000, 5_000], 3));
    }
}
