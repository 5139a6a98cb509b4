//! Decides a prober's next step: warm a connection up, take a sample, or stop. This module is pure.
//!
//! Samples are taken on a warm connection. If the server closes the connection between two samples,
//! the prober opens another one. A sample counts as lost only after the server has closed
//! `CLOSURES_A_SAMPLE` connections. If the server closes the connection after every response, no
//! connection is ever warm. If the first sample shows such a server, the first request of each
//! connection is the sample instead. The handshakes are still timed separately.

use super::stopping_rule::is_hopeless;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::stopping_rule::HOPELESS;

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
}
