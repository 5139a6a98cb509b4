//! Decides a prober's next step (warm a connection up, take a sample, or stop), and when there are
//! enough samples, or the host does not answer. This module is pure.
//!
//! Samples are taken on a warm connection. If the server closes the connection between two samples,
//! the prober opens another one. A sample counts as lost only after the server has closed
//! `CLOSURES_A_SAMPLE` connections. If the server closes the connection after every response, no
//! connection is ever warm. If the first sample shows such a server, the first request of each
//! connection is the sample instead. The handshakes are still timed separately.
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
//! of fixed-width sequential confidence intervals for the mean" (1965). Tests in
//! tests/src/experiments/estimator_accuracy.rs simulate how many samples the rule saves, and how
//! much accuracy it costs.

use std::time::Duration;

use super::weighted_mean::weighted_mean;

/// Number of closed connections after which a sample counts as lost.
const CLOSURES_A_SAMPLE: u32 = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Open a connection, and discard the time of its first request.
    WarmUp,
    Sample,
    /// Open a connection and use its first request as a sample, because the server keeps no
    /// connection open.
    ColdSample,
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The first request was answered, and the connection can be used again.
    Warmed,
    /// No connection was made, or its first request was not answered.
    WarmUpFailed,
    /// The connection was closed before a sample was sent, or before the sample was answered.
    Closed,
    /// A sample was answered, and the connection can be used again.
    Answered,
    /// A sample was answered, but the connection was closed.
    AnsweredAndClosed,
    Lost,
}

#[derive(Debug, Clone)]
pub struct SampleSchedule {
    wanted: u32,
    answered: u32,
    lost: u32,
    warm: bool,
    closures: u32,
    /// Whether the first request of each connection is a sample.
    cold: bool,
}

impl SampleSchedule {
    /// A schedule for `samples` samples on warm connections.
    pub const fn warm(samples: u32) -> Self {
        Self { wanted: samples, answered: 0, lost: 0, warm: true, closures: 0, cold: false }
    }

    pub const fn next(&self) -> Step {
        if is_hopeless(self.answered, self.lost) || self.answered + self.lost >= self.wanted {
            Step::Done
        } else if self.cold {
            Step::ColdSample
        } else if self.warm {
            Step::Sample
        } else {
            Step::WarmUp
        }
    }

    pub const fn record(&mut self, event: Event) {
        self.warm = matches!(event, Event::Warmed | Event::Answered);
        match event {
            Event::Warmed => {}
            Event::Closed => {
                self.closures += 1;
                if self.closures >= CLOSURES_A_SAMPLE {
                    if self.answered == 0 && self.lost == 0 {
                        self.cold = true;
                    } else {
                        self.end_sample(false);
                    }
                }
            }
            Event::WarmUpFailed | Event::Lost => self.end_sample(false),
            Event::Answered | Event::AnsweredAndClosed => self.end_sample(true),
        }
    }

    const fn end_sample(&mut self, answered: bool) {
        self.closures = 0;
        if answered {
            self.answered += 1;
        } else {
            self.lost += 1;
        }
    }

    pub const fn lost(&self) -> u32 {
        self.lost
    }
}

/// The relative standard error at which to stop. This accuracy suffices because predictions on the
/// map have a median error of 5 %, and the errors of several probers average out. In
/// simulated trials, halving this standard error took 80 % more samples, and did not change the
/// share of results with an error within 5 %.
pub const RELATIVE_ERROR: f64 = 0.02;
/// The absolute standard error at which to stop. Smaller differences do not matter when an agent is
/// chosen, and timers in user space are not more exact.
pub const ABSOLUTE_ERROR: Duration = Duration::from_micros(250);
/// Minimum number of samples. Of two samples that differ, either could be the spike.
pub const FEWEST: u32 = 3;
/// Number of lost samples after which the prober gives up if no sample was answered.
const HOPELESS: u32 = 3;
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
const fn is_hopeless(answered: u32, lost: u32) -> bool {
    answered == 0 && lost >= HOPELESS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a prober whose connections become warm. `warm` lists the events of the samples in
    /// order; the last event in the list is repeated. `cold` is the event of every cold sample.
    /// Returns the steps taken, and the number of lost samples.
    fn play(samples: u32, warm: &[Event], cold: Event) -> (Vec<Step>, u32) {
        let (mut schedule, mut steps, mut warm) = (SampleSchedule::warm(samples), Vec::new(), warm.to_vec());
        while schedule.next() != Step::Done {
            steps.push(schedule.next());
            schedule.record(match schedule.next() {
                Step::WarmUp => Event::Warmed,
                Step::ColdSample => cold,
                _ if warm.len() > 1 => warm.remove(0),
                _ => warm[0],
            });
            assert!(steps.len() < 1000, "it never ends");
        }
        (steps, schedule.lost())
    }

    #[test]
    fn a_new_connection_is_warmed_only_when_the_old_one_is_closed() {
        use Event::{Answered, AnsweredAndClosed, Closed, Lost};
        use Step::{Sample, WarmUp};
        for (samples, events, steps, lost) in [
            (4, &[Answered][..], &[Sample; 4][..], 0),
            (2, &[AnsweredAndClosed], &[Sample, WarmUp, Sample], 0),
            (2, &[Lost, Answered], &[Sample, WarmUp, Sample], 1),
            (3, &[Closed, Answered], &[Sample, WarmUp, Sample, Sample, Sample], 0),
        ] {
            assert_eq!(play(samples, events, Lost), (steps.to_vec(), lost), "{events:?}");
        }
    }

    #[test]
    fn a_server_that_always_closes_is_sampled_cold_until_it_stops_answering() {
        let (steps, lost) = play(3, &[Event::Closed], Event::AnsweredAndClosed);
        assert_eq!(steps[..3], [Step::Sample, Step::WarmUp, Step::Sample]);
        assert_eq!((&steps[3..], lost), (&[Step::ColdSample; 3][..], 0));
        let (steps, lost) = play(100, &[Event::Closed], Event::Lost);
        assert_eq!((steps.len(), lost), (6, HOPELESS));
    }

    #[test]
    fn a_server_that_closes_while_it_is_warmed_is_sampled_cold_too() {
        let (mut schedule, mut steps) = (SampleSchedule::warm(100), 0);
        while schedule.next() != Step::Done {
            schedule.record(if schedule.next() == Step::ColdSample { Event::Lost } else { Event::Closed });
            steps += 1;
            assert!(steps < 1000, "it never ends");
        }
        assert_eq!((steps, schedule.lost()), (5, HOPELESS));
    }

    #[test]
    fn a_host_that_answered_once_gets_all_samples() {
        let (steps, lost) = play(10, &[Event::Answered, Event::Lost], Event::Lost);
        assert_eq!((lost, steps.iter().filter(|step| **step == Step::Sample).count()), (9, 10));
    }

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
