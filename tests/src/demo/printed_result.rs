//! The result that `lab demo` prints: four lines, then one line per failed check, missed target, or
//! reason why the times are unreliable.

use std::path::Path;

use super::targets::{PeakMemory, Target, shown_mb};
use crate::evidence::check::Check;
use crate::evidence::figures::Figures;

pub(super) struct RunOutcome<'a> {
    pub(super) sites: usize,
    pub(super) checks: &'a [Check],
    pub(super) targets: &'a [Target],
    pub(super) figures: &'a Figures,
    pub(super) memory: PeakMemory,
    /// Why the run's times are unreliable; `None` if they are reliable.
    pub(super) busy: Option<&'a str>,
}

/// The printed text, and the values that determine the exit code.
pub(super) struct Verdict {
    pub(super) text: String,
    /// Number of failed checks.
    pub(super) broken: usize,
    /// Whether every target is met and the times are reliable, as `--strict` requires.
    pub(super) strict: bool,
}

impl Verdict {
    pub(super) fn print(&self, output: &Path) {
        print!("{}", self.text);
        println!("Report: file://{}", output.join("report.html").display());
        println!(
            "        every assignment: {}, logs: {}",
            output.join("assignments.csv").display(),
            output.join("logs").display()
        );
    }

    pub(super) fn of(run: &RunOutcome<'_>) -> Self {
        let broken: Vec<&Check> = run.checks.iter().filter(|check| !check.holds()).collect();
        let missed: Vec<&Target> = run.targets.iter().filter(|target| !target.met).collect();
        let holding = format!("{} of {} checks hold", run.checks.len() - broken.len(), run.checks.len());
        let mut lines = vec![if broken.is_empty() {
            format!("\nResult: all {} sites were crawled, each exactly once ({holding})", run.sites)
        } else {
            format!("\nResult: FAILED ({holding})")
        }];
        lines.extend(broken.iter().map(|check| check.lines()));
        let figures = run.figures;
        if let (Some(crawler), Some(error)) = (figures.crawler_ms, figures.relative_error(0.5)) {
            lines.push(format!(
                "  mean round trip, site to its agent  {crawler:6.1} ms   (to a random agent {:.1} ms, to the nearest {:.1} ms)",
                figures.random_ms, figures.nearest_ms
            ));
            lines.push(format!("  predicted distances, median error   {:6.1} %", error * 100.0));
        }
        lines.push(format!(
            "  peak memory                         scheduler {}, largest agent {}",
            shown_mb(run.memory.scheduler),
            shown_mb(run.memory.largest_agent)
        ));
        lines.extend(
            missed.iter().map(|target| {
                format!("  target missed: {}: {}, wanted {}", target.name, target.measured, target.wanted)
            }),
        );
        lines.extend(
            run.busy
                .map(|reason| format!("  Note: times are approximate ({reason}); the checks do not depend on them.")),
        );
        let text = lines.iter().map(|line| format!("{line}\n")).collect();
        Self { text, broken: broken.len(), strict: missed.is_empty() && run.busy.is_none() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::evidence::figures::{Accuracy, Prediction};

    fn verdict(busy: Option<&str>, met: bool, violations: Vec<String>) -> Verdict {
        let figures = Figures {
            crawler_ms: Some(19.6),
            random_ms: 37.5,
            nearest_ms: 16.8,
            predictions: vec![Prediction { predicted_ms: 104.0, true_ms: 100.0 }],
            mesh: Accuracy::default(),
            sites: Accuracy::default(),
            bytes: 1,
            crawling: Duration::from_secs(1),
        };
        let target =
            Target { name: "memory".to_owned(), wanted: "< 40 MB".to_owned(), measured: "47 MB".to_owned(), met };
        let check = Check { rule: "each site is done".to_owned(), violations };
        let memory = PeakMemory { scheduler: Some(47.0), postgres: None, largest_agent: None };
        Verdict::of(&RunOutcome { sites: 203, checks: &[check], targets: &[target], figures: &figures, memory, busy })
    }

    #[test]
    fn a_result_is_four_lines_and_one_for_each_thing_that_is_not_as_it_should_be() {
        let fine = verdict(None, true, Vec::new());
        assert_eq!((fine.text.trim().lines().count(), fine.broken, fine.strict), (4, 0, true), "{}", fine.text);
        assert!(
            fine.text.contains("all 203 sites were crawled, each exactly once (1 of 1 checks hold)"),
            "{}",
            fine.text
        );
        let busy = verdict(Some("the machine was only 5 % idle"), true, Vec::new());
        assert!(
            busy.text.ends_with("only 5 % idle); the checks do not depend on them.\n") && !busy.strict,
            "{}",
            busy.text
        );
        let missed = verdict(None, false, Vec::new());
        assert!(
            missed.text.contains("target missed: memory: 47 MB, wanted < 40 MB") && !missed.strict,
            "{}",
            missed.text
        );
        let broken = verdict(None, true, vec!["site 7 was crawled twice".to_owned()]);
        assert!(
            broken.text.contains("FAILED (0 of 1 checks hold)") && broken.text.contains("site 7"),
            "{}",
            broken.text
        );
        assert_eq!(broken.broken, 1);
    }
}
