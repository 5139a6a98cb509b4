//! Compares measurements with the scenario's round trips. If the run's timing is void, inaccurate
//! measurements are accepted.

use crate::evidence::float;

/// A measurement is right if its error is at most this fraction of the true round trip, or at most
/// [`RIGHT_MS`].
const RIGHT_SHARE: f64 = 0.05;
const RIGHT_MS: f64 = 2.0;
/// Maximum processing time to subtract from measurements, in milliseconds. The client, the emulated
/// network and the server need about 1 ms on a fast machine, and 2 ms in a debug build on a slow
/// machine.
const MAX_PROCESSING_MS: f64 = 2.0;
/// Minimum fraction of measurements that must be right.
pub const RIGHT_PAIRS: f64 = 0.95;
/// Maximum number of runs, at least one of which must have accurate measurements. If other
/// processes briefly occupy the processors, samples can be late by more than 2 ms, a delay that the
/// emulated network cannot detect. An error in Landfall would occur in every run.
const RUNS: usize = 3;

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Accuracy {
    pub pairs: usize,
    /// Number of answered measurements that are right after [`Self::processing_ms`] is subtracted.
    pub right: usize,
    pub unanswered: usize,
    /// The processing time that every measurement includes, estimated as the median error and
    /// clamped to the range from 0 to 2 ms.
    pub processing_ms: f64,
}

impl Accuracy {
    /// Compares measurements with true round trips. An item is `None` if the measurement got no
    /// answer, or the scenario has no true round trip for it.
    pub fn of(measured_and_true_ms: impl IntoIterator<Item = Option<(f64, f64)>>) -> Self {
        let all: Vec<_> = measured_and_true_ms.into_iter().collect();
        let mut errors: Vec<(f64, f64)> =
            all.iter().flatten().map(|(measured_ms, true_ms)| (measured_ms - true_ms, *true_ms)).collect();
        errors.sort_by(|one, other| one.0.total_cmp(&other.0));
        let median = errors.get(errors.len() / 2).map_or(0.0, |(error, _)| *error);
        let processing_ms = median.clamp(0.0, MAX_PROCESSING_MS);
        let right =
            |(error, true_ms): &&(f64, f64)| (error - processing_ms).abs() <= (true_ms * RIGHT_SHARE).max(RIGHT_MS);
        let right = errors.iter().filter(right).count();
        Self { pairs: errors.len(), right, unanswered: all.len() - errors.len(), processing_ms }
    }

    /// The fraction of measurements that are right. Unanswered measurements count as wrong. `None`
    /// if there are no measurements.
    pub fn share(&self) -> Option<f64> {
        let all = self.pairs + self.unanswered;
        (all > 0).then(|| float(self.right) / float(all))
    }

    pub fn is_true(&self) -> bool {
        self.share().is_some_and(|share| share >= RIGHT_PAIRS)
    }

    /// Whether enough measurements are right. If the timing is void, measurements always pass.
    fn passes(&self, void: Option<&str>) -> bool {
        self.is_true() || void.is_some()
    }

    /// What is wrong with the measurements; `None` if they pass. If wrong measurements pass because
    /// the timing is void, the reason is printed.
    pub fn violation(&self, what: &str, void: Option<&str>) -> Option<String> {
        println!("{what}: {self:?}");
        if let (false, Some(reason)) = (self.is_true(), void) {
            println!("void: {reason}");
        }
        (!self.passes(void)).then(|| format!("{what}: {self:?}"))
    }
}

/// Repeats a run until its measurements are accurate, or `RUNS` runs have failed. A run returns
/// what is wrong with its measurements.
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
        let none = Accuracy::default();
        assert_eq!((none.share(), none.is_true()), (None, false));
        let right = [(12.0, 10.0), (8.0, 10.0), (10.0, 10.0), (105.0, 100.0)];
        let wrong = [(7.9, 10.0), (94.9, 100.0)];
        let accuracy = Accuracy::of(right.into_iter().chain(wrong).map(Some).chain([None]));
        assert_eq!(accuracy, Accuracy { pairs: 6, right: 4, unanswered: 1, processing_ms: 0.0 });
        assert!((accuracy.share().unwrap() - 4.0 / 7.0).abs() < 1e-9);
        assert!(accuracy.violation("sites", None).unwrap().starts_with("sites: "));
        assert!(accuracy.passes(Some("the machine was busy")));
        assert!(Accuracy { pairs: 20, right: 19, ..none }.is_true());
        assert!(!Accuracy { pairs: 96, right: 91, ..none }.is_true());
    }

    #[test]
    fn the_same_delay_in_all_measurements_is_the_machines_up_to_a_limit() {
        let paths = [4.0, 12.0, 24.0, 36.0, 48.0];
        let late = |delay_ms: f64| Accuracy::of(paths.map(|path| Some((path + delay_ms, path))));
        assert_eq!((late(1.9).right, late(3.9).right, late(4.1).right), (5, 5, 1));
        assert_eq!((late(-1.9).right, late(-2.1).right), (5, 1), "no machine makes samples too short");
        let longer = Accuracy::of(paths.map(|path| Some((path * 1.25, path))));
        assert!(!longer.is_true(), "an error that grows with the path is Landfall's: {longer:?}");
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
