//! What `lab demo` prints: the progress, with one line per stage and a moving bar if the output is
//! a terminal; the result; and what `--verbose` adds.
//!
//! The result has four lines, then one line per failed check, missed target, or reason why the
//! times are unreliable. `--verbose` adds the operator's own reports, every check, every target,
//! and the lateness of the emulated network.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use sqlx::PgPool;

use super::targets::{PeakMemory, Target, shown_mb};
use crate::cluster::Cluster;
use crate::evidence::check::Check;
use crate::evidence::figures::{Figures, float, text_table};

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
    text: String,
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

/// Number of printed rows of the assignment report.
const ROWS_SHOWN: usize = 12;

/// Prints the first assignments, and the report on the agents.
pub(super) async fn print_reports(cluster: &Cluster, batch: &str) -> anyhow::Result<()> {
    let table = cluster.operate(&["report", "assignments", "--batch", batch, "--format", "table"]).await?;
    println!("\nlandfall report assignments --batch {batch}");
    for line in table.lines().take(ROWS_SHOWN + 3) {
        println!("{line}");
    }
    println!("…\n\nlandfall report agents --batch {batch}");
    print!("{}", cluster.operate(&["report", "agents", "--batch", batch, "--format", "table"]).await?);
    Ok(())
}

pub(super) fn print_details(checks: &[Check], targets: &[Target], cluster: &Cluster, idle: Option<f64>) {
    println!("\nChecks, in the database and against the web servers' own logs");
    for check in checks {
        println!("{}", check.lines());
    }
    println!("\nTargets");
    let rows: Vec<Vec<String>> = targets
        .iter()
        .map(|Target { name, wanted, measured, met }| {
            let met = if *met { "met" } else { "MISSED" };
            vec![name.clone(), wanted.clone(), measured.clone(), met.to_owned()]
        })
        .collect();
    print!("{}", text_table(&["target", "wanted", "measured", ""], &rows));
    let lateness = cluster.world.lateness();
    let idle = idle.map_or("unknown".to_owned(), |idle| format!("{:.0} %", idle * 100.0));
    println!(
        "the emulated network was late by p50 {:.1?}, p99 {:.1?} over {} waits or packets; the computer was {idle} idle",
        lateness.quantile(0.5),
        lateness.quantile(0.99),
        lateness.count()
    );
}

/// Time between two updates of a bar.
const DRAWN_EVERY: Duration = Duration::from_millis(250);
const WIDTH: usize = 24;

/// Measures and prints the time of each stage of a run.
#[derive(Debug)]
pub(super) struct Stages {
    began: Instant,
    stage: Instant,
    moving: bool,
}

impl Stages {
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self { began: now, stage: now, moving: std::io::stdout().is_terminal() }
    }

    /// The time since the first stage began.
    pub(super) fn took(&self) -> Duration {
        self.began.elapsed()
    }

    /// Prints the time of the current stage `what`, and begins the next stage.
    pub(super) fn done(&mut self, what: &str) {
        let seconds = self.stage.elapsed().as_secs_f64();
        let erase = if self.moving { "\r\x1b[K" } else { "" };
        println!("{erase}{} {seconds:6.1} s", line(what, 1.0));
        self.stage = Instant::now();
    }

    /// Runs the work of a stage. Meanwhile the function draws a bar whose length is the result of
    /// `query` as a fraction of `all`.
    pub(super) async fn follow<T>(
        &mut self,
        what: &str,
        (pool, query, all): (PgPool, &'static str, usize),
        work: impl Future<Output = anyhow::Result<T>>,
    ) -> anyhow::Result<T> {
        let mut work = std::pin::pin!(work);
        let mut tick = tokio::time::interval(DRAWN_EVERY);
        let ended = loop {
            tokio::select! {
                ended = &mut work => break ended,
                _ = tick.tick(), if self.moving => {
                    // If the database does not answer, the bar shows 0.
                    let asked = sqlx::query_scalar::<_, i64>(query).fetch_one(&pool).await;
                    draw(what, asked.ok().and_then(|count| usize::try_from(count).ok()).unwrap_or(0), all);
                }
            }
        }?;
        self.done(what);
        Ok(ended)
    }
}

fn draw(what: &str, count: usize, all: usize) {
    let share = float(count) / float(all.max(1));
    print!("\r\x1b[K{} {count} of {all}", line(what, share.min(1.0)));
    // An error is ignored, because a missing bar does no harm.
    drop(std::io::stdout().flush());
}

/// A stage's name and its bar, of which the fraction `share` is full.
fn line(what: &str, share: f64) -> String {
    let full = (1..=WIDTH).filter(|part| float(*part) <= share * float(WIDTH)).count();
    format!("  {what:<44} [{}{}]", "#".repeat(full), ".".repeat(WIDTH - full))
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

    #[test]
    fn a_bar_is_as_full_as_the_stage_has_come() {
        assert!(line("crawling", 0.0).ends_with(&format!("[{}]", ".".repeat(WIDTH))));
        assert!(line("crawling", 0.5).ends_with(&format!("[{}{}]", "#".repeat(WIDTH / 2), ".".repeat(WIDTH / 2))));
        assert!(line("crawling", 1.0).ends_with(&format!("[{}]", "#".repeat(WIDTH))));
    }
}
