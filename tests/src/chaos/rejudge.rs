//! `lab judge`: judges a recorded run again. It can also write an excerpt of the record that
//! contains tasks with violations.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::report::Summary;
use crate::chaos::judge::history::History;
use crate::chaos::judge::{self, Rule, Violation};

/// Number of tasks per violated rule that an excerpt contains.
const KEPT_OFFENDING: usize = 2;
/// Number of other tasks that an excerpt contains, for comparison.
const KEPT_OTHERS: usize = 3;

#[derive(Debug, Clone, Args)]
pub struct JudgeArgs {
    /// The record, as `lab chaos --record` writes it
    record: PathBuf,
    /// Write the part of the record that shows the violations to this file
    #[arg(long, value_name = "FILE")]
    shrink: Option<PathBuf>,
}

pub fn read(file: &Path) -> anyhow::Result<History> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no record of a run", file.display()))
}

/// Prints the violations. The exit code is 0 if there are none.
pub fn rejudge(args: &JudgeArgs) -> anyhow::Result<ExitCode> {
    let history = read(&args.record)?;
    let violations = judge::judge(&history);
    print!("{}", Summary::of(&history, &violations).table());
    for violation in &violations {
        println!("{}: {}", violation.rule.name(), violation.message);
    }
    if let Some(file) = &args.shrink {
        let text = serde_json::to_string(&shrunk(&history, &violations)).context("write the part")?;
        std::fs::write(file, text + "\n").with_context(|| format!("write {}", file.display()))?;
    }
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// An excerpt of the record with a few tasks that violate rules and a few other tasks.
fn shrunk(history: &History, violations: &[Violation]) -> History {
    let mut kept = BTreeSet::new();
    for rule in Rule::ALL {
        let of_rule = violations.iter().filter(|violation| violation.rule == rule);
        kept.extend(of_rule.filter_map(|violation| violation.task).take(KEPT_OFFENDING));
    }
    let violating: BTreeSet<i64> = violations.iter().filter_map(|violation| violation.task).collect();
    // Of the tasks without a violation, those that lost a lease are taken first.
    let lost = history.events.iter().filter(|event| event.is("lease", "expired")).filter_map(|event| event.task);
    let others = lost.chain(history.tasks.iter().map(|task| task.id)).filter(|task| !violating.contains(task));
    kept.extend(others.take(KEPT_OTHERS).collect::<Vec<_>>());
    history.of_tasks(|task| kept.contains(&task))
}

impl History {
    /// Returns the data of the tasks for which `keep` is true, and all data that do not belong to a
    /// task.
    fn of_tasks(&self, keep: impl Fn(i64) -> bool) -> Self {
        let mut part = self.clone();
        part.tasks.retain(|task| keep(task.id));
        let sites: Vec<&String> = part.tasks.iter().map(|task| &task.site).collect();
        let all: BTreeSet<&String> = self.tasks.iter().map(|task| &task.site).collect();
        // Acknowledged sites without a task are kept, because they are violations.
        part.acknowledged.retain(|site| sites.contains(&site) || !all.contains(site));
        part.requests.retain(|request| sites.contains(&&request.site));
        part.outcomes.retain(|outcome| keep(outcome.task));
        part.events.retain(|event| event.task.is_none_or(&keep));
        part.notices.retain(|notices| keep(notices.task));
        part
    }
}

#[cfg(test)]
mod tests {
    use crate::chaos::judge::tests::history;

    #[test]
    fn a_part_of_a_history_keeps_everything_about_its_tasks() {
        let mut history = history();
        history.acknowledged.push("http://lost.test:8080".to_owned());
        let part = history.of_tasks(|_| false);
        assert_eq!((part.tasks.len(), part.notices.len(), part.requests.len()), (0, 0, 0));
        assert_eq!(part.acknowledged, ["http://lost.test:8080"]);
        assert_eq!(history.of_tasks(|task| task == 1), history);
    }
}
