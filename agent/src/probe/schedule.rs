//! Decides what a prober does next: warm a connection up, take a sample, or stop. Pure.
//!
//! A sample counts only on a warm connection. A connection that the server closes between two samples is opened again
//! without counting anything as lost, but not for ever. A server that closes after every answer never has a warm one: when
//! that shows before any sample was answered, the first request of each connection is taken instead, its handshakes still
//! timed apart.

/// Connections that may be closed under one sample before it counts as lost.
const CLOSURES_A_SAMPLE: u32 = 2;
/// After so many lost samples without one answered there is no hope.
const HOPELESS: u32 = 3;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Open a connection and throw its first request away.
    WarmUp,
    /// Take a sample on the warm connection.
    Sample,
    /// Open a connection and take its first request for a sample, since no connection is kept.
    ColdSample,
    /// Stop.
    Done,
}

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The first request was answered, and the connection can be used on.
    Warmed,
    /// No connection, or its first request was not answered.
    WarmUpFailed,
    /// The connection was closed before a sample was sent on it or answered.
    Closed,
    /// A sample was answered, and the connection can be used on.
    Answered,
    /// A sample was answered, and the connection is gone.
    AnsweredAndClosed,
    /// A sample was not answered in time.
    Lost,
}

/// The state of one measurement.
#[derive(Debug, Clone)]
pub struct Schedule {
    wanted: u32,
    answered: u32,
    lost: u32,
    warm: bool,
    closures: u32,
    /// Whether first requests are taken for samples.
    cold: bool,
}

impl Schedule {
    /// A measurement of `samples` samples that begins with a connection already warm.
    pub const fn warm(samples: u32) -> Self {
        Self { wanted: samples, answered: 0, lost: 0, warm: true, closures: 0, cold: false }
    }

    /// What to do next.
    pub const fn next(&self) -> Step {
        let hopeless = self.answered == 0 && self.lost >= HOPELESS;
        if hopeless || self.answered + self.lost >= self.wanted {
            Step::Done
        } else if self.cold {
            Step::ColdSample
        } else if self.warm {
            Step::Sample
        } else {
            Step::WarmUp
        }
    }

    /// Takes note of what came of it.
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

    /// Samples that were lost.
    pub const fn lost(&self) -> u32 {
        self.lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a prober against an answer per step; returns the steps taken.
    fn play(samples: u32, mut answer: impl FnMut(Step) -> Event) -> (Vec<Step>, Schedule) {
        let mut schedule = Schedule::warm(samples);
        let mut steps = Vec::new();
        while schedule.next() != Step::Done {
            steps.push(schedule.next());
            schedule.record(answer(schedule.next()));
            assert!(steps.len() < 1000, "it never ends");
        }
        (steps, schedule)
    }

    #[test]
    fn a_kept_connection_is_sampled_and_never_warmed_again() {
        let (steps, schedule) = play(4, |_| Event::Answered);
        assert_eq!(steps, [Step::Sample; 4]);
        assert_eq!(schedule.lost(), 0);
    }

    #[test]
    fn a_connection_that_goes_with_each_answer_is_warmed_before_each_sample() {
        let (steps, schedule) = play(2, |step| match step {
            Step::WarmUp => Event::Warmed,
            _ => Event::AnsweredAndClosed,
        });
        assert_eq!(steps, [Step::Sample, Step::WarmUp, Step::Sample]);
        assert_eq!(schedule.lost(), 0);
    }

    #[test]
    fn a_lost_sample_makes_the_connection_cold() {
        let mut first = true;
        let (steps, schedule) = play(2, |step| match step {
            Step::WarmUp => Event::Warmed,
            _ if std::mem::take(&mut first) => Event::Lost,
            _ => Event::Answered,
        });
        assert_eq!(steps, [Step::Sample, Step::WarmUp, Step::Sample]);
        assert_eq!(schedule.lost(), 1);
    }

    #[test]
    fn a_server_that_always_closes_is_sampled_cold() {
        let (steps, schedule) = play(3, |step| match step {
            Step::WarmUp => Event::Warmed,
            Step::ColdSample => Event::AnsweredAndClosed,
            _ => Event::Closed,
        });
        assert_eq!(steps[..3], [Step::Sample, Step::WarmUp, Step::Sample]);
        assert_eq!(steps[3..], [Step::ColdSample; 3]);
        assert_eq!(schedule.lost(), 0);
    }

    #[test]
    fn a_server_that_closes_and_then_is_silent_is_given_up() {
        let (steps, schedule) = play(100, |step| match step {
            Step::ColdSample => Event::Lost,
            _ => Event::Closed,
        });
        assert_eq!(steps.len(), 5);
        assert_eq!(schedule.lost(), HOPELESS);
    }

    #[test]
    fn one_closure_loses_nothing() {
        let mut first = true;
        let (_, schedule) = play(3, |step| match step {
            Step::WarmUp => Event::Warmed,
            _ if std::mem::take(&mut first) => Event::Closed,
            _ => Event::Answered,
        });
        assert_eq!(schedule.lost(), 0);
    }

    #[test]
    fn a_host_that_answered_once_is_asked_to_the_end() {
        let mut first = true;
        let (steps, schedule) = play(10, |step| match step {
            Step::WarmUp => Event::Warmed,
            _ if std::mem::take(&mut first) => Event::Answered,
            _ => Event::Lost,
        });
        assert_eq!(schedule.lost(), 9);
        assert_eq!(steps.iter().filter(|step| **step == Step::Sample).count(), 10);
    }
}
