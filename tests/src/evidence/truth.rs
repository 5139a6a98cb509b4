//! The accuracy of measurements: measured against the scenario's round trips, and when the
//! comparison is valid.

use crate::evidence::figures::float;

/// A measurement is right within this share of the truth, or [`RIGHT_MS`].
const RIGHT_SHARE: f64 = 0.05;
/// A measurement is right within this many milliseconds of the truth, or [`RIGHT_SHARE`].
const RIGHT_MS: f64 = 2.0;
/// The share of measurements that must be right.
pub const RIGHT_PAIRS: f64 = 0.95;
/// Runs of which one must measure accurately. A machine that briefly gives its processors to other
/// processes makes samples of 30 ms late by the permitted 2 ms, and the emulated network's own
/// lateness does not show it. An error in Landfall shows in every run. More runs would only delay a
/// failure.
const RUNS: usize = 3;

/// How many of the measurements were right.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Accuracy {
    /// Measurements with an answer.
    pub pairs: usize,
    /// Those within the larger of 5 % and 2 ms of the truth.
    pub right: usize,
    /// Measurements without an answer.
    pub unanswered: usize,
}

impl Accuracy {
    /// Counts one measurement, in milliseconds; `None` was not answered, or has no true value in
    /// the scenario.
    pub fn note(&mut self, measured_and_true_ms: Option<(f64, f64)>) {
        match measured_and_true_ms {
            Some((measured_ms, true_ms)) => {
                self.pairs += 1;
                self.right += usize::from((measured_ms - true_ms).abs() <= (true_ms * RIGHT_SHARE).max(RIGHT_MS));
            }
            None => self.unanswered += 1,
        }
    }

    /// The share that was right; unanswered measurements count as wrong. `None` without
    /// measurements.
    pub fn share(&self) -> Option<f64> {
        let all = self.pairs + self.unanswered;
        (all > 0).then(|| float(self.right) / float(all))
    }

    /// Whether enough of them were right.
    pub fn is_true(&self) -> bool {
        self.share().is_some_and(|share| share >= RIGHT_PAIRS)
    }

    /// Whether they are right, or prove nothing as the run's timing is void.
    fn passes(&self, void: Option<&str>) -> bool {
        self.is_true() || void.is_some()
    }

    /// What is wrong with them; `None` if they pass. A run that proves nothing prints why, and thus
    /// counts as skipped.
    pub fn violation(&self, what: &str, void: Option<&str>) -> Option<String> {
        println!("{what}: {self:?}");
        if let (false, Some(reason)) = (self.is_true(), void) {
            println!("void: {reason}");
        }
        (!self.passes(void)).then(|| format!("{what}: {self:?}"))
    }
}

/// Repeats a run until one measures accurately; each run returns what is wrong with its
/// measurements.
///
/// # Errors
/// When none of three runs was accurate: what was wrong with each.
pub async fn in_one_run(mut run: impl AsyncFnMut() -> Vec<String>) -> Result<(), String> {
    let mut violations = Vec::new();
    for _ in 0..RUNS {
        let said = run().await;
        if said.is_empty() {
            return Ok(());
        }
        violations.push(said);
    }
    Err(format!("in each of {RUNS} runs: {violations:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_right_within_five_percent_or_two_milliseconds() {
        let mut accuracy = Accuracy::default();
        assert_eq!((accuracy.share(), accuracy.is_true()), (None, false));
        let right = [(12.0, 10.0), (8.0, 10.0), (105.0, 100.0)];
        let wrong = [(12.1, 10.0), (105.1, 100.0)];
        right.into_iter().chain(wrong).for_each(|one| accuracy.note(Some(one)));
        accuracy.note(None);
        assert_eq!(accuracy, Accuracy { pairs: 5, right: 3, unanswered: 1 });
        assert_eq!(accuracy.share(), Some(0.5));
        assert!(accuracy.violation("sites", None).unwrap().starts_with("sites: "));
        assert!(accuracy.passes(Some("the machine was busy")));
        assert!(Accuracy { pairs: 20, right: 19, unanswered: 0 }.is_true());
        assert!(!Accuracy { pairs: 96, right: 91, unanswered: 0 }.is_true());
    }

    #[tokio::test]
    async fn one_accurate_run_is_enough_and_repeated_errors_are_reported() {
        let mut answers = vec![vec![], vec!["late".to_owned()]];
        in_one_run(async || answers.pop().unwrap()).await.unwrap();
        let mut runs = 0;
        let always = async || {
            runs += 1;
            vec![format!("wrong {runs}")]
        };
        let said = in_one_run(always).await.unwrap_err();
        assert!(said.contains("wrong 1") && said.contains("wrong 3") && !said.contains("wrong 4"), "{said}");
    }
}
