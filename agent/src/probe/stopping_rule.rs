//! Decides when a prober stops taking samples: if there are enough, or if the host does not answer.
//! This module is pure.
//!
//! [`is_stable`] is checked after each answered sample: stop if the standard error of the result is
//! at most [`RELATIVE_ERROR`] times the result, or at most [`ABSOLUTE_ERROR`]. The standard error
//! is that of the median of normally distributed samples, √(π/2) · s / √n. Here s is the scaled
//! MAD, and n is the number of samples within 3 s of the median. For few samples the weighted mean
//! is the median; for many samples it is more exact than the median. Spikes increase the MAD, so a
//! host gets more requests if its samples disagree. If its first samples agree, they suffice,
//! because two spikes seldom agree.
//!
//! Source for sequential stopping at a given precision: Chow and Robbins, "On the asymptotic theory
//! of fixed-width sequential confidence intervals for the mean" (1965). `lab trials` computes how
//! many requests the rule saves, and how much accuracy it costs.

use std::time::Duration;

use super::weighted_mean::weighted_mean;

/// The relative standard error at which to stop. This accuracy suffices because predictions on the
/// map have a median error of 5 %, and the errors of several probers average out. In `lab trials`,
/// halving this standard error took 80 % more samples, and did not change the share of results with
/// an error within 5 %.
pub const RELATIVE_ERROR: f64 = 0.02;
/// The absolute standard error at which to stop. Smaller differences do not matter when an agent is
/// chosen, and timers in user space are not more exact.
pub const ABSOLUTE_ERROR: Duration = Duration::from_micros(250);
/// Minimum number of samples. Of two samples that differ, either could be the spike.
pub const FEWEST: u32 = 3;
/// Number of lost samples after which the prober gives up if no sample was answered.
pub(super) const HOPELESS: u32 = 3;
/// Ratio of the standard errors of median and mean, √(π/2), for normally distributed samples.
const MEDIAN_TO_MEAN: f64 = 1.2533;

/// Whether the weighted mean of these samples is exact enough to stop. Requires at least `least`
/// samples, and at least [`FEWEST`].
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

/// Whether so many samples were lost that the host will probably answer none.
pub(super) const fn is_hopeless(answered: u32, lost: u32) -> bool {
    answered == 0 && lost >= HOPELESS
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
