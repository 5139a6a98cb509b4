//! Prints the results of a run as a table or as JSON. `lab judge` judges a recorded run again, and
//! can also write an excerpt of the record, a few tasks that violate rules and a few others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::judge::{self, Rule, Violation};
use crate::chaos::judge::record_format::History;
use crate::chaos::judge::recovery::{Recovery, recovery};
use crate::evidence::figures::text_table;

/// The results of a run. The field names are those of the JSON output.
#[derive(Debug, Clone, Serialize)]
pub struct Summary {
    pub seed: u64,
    /// Number of sites whose submission was acknowledged.
    pub sites: usize,
    pub faults: usize,
    /// Number of faults by kind.
    pub by_fault: BTreeMap<String, usize>,
    /// Number of violations by [`Rule::name`].
    #[serde(flatten)]
    pub violations: BTreeMap<&'static str, usize>,
    /// Number of failed and cancelled tasks, by state and reason. Each reason is cut at its first
    /// colon.
    pub failed: BTreeMap<String, usize>,
    pub grants: usize,
    pub sessions_expired: usize,
    pub took_s: f64,
    pub recovery_s: Recovery,
}

impl Summary {
    #[expect(clippy::cast_precision_loss, reason = "microseconds of a run fit a double exactly")]
    pub fn of(history: &History, violations: &[Violation]) -> Self {
        let mut by_fault = BTreeMap::new();
        for fault in &history.faults {
            *by_fault.entry(fault.kind.clone()).or_default() += 1;
        }
        let count = |rule| violations.iter().filter(|violation| violation.rule == rule).count();
        let mut failed = BTreeMap::new();
        for task in history.tasks.iter().filter(|task| matches!(task.state.as_str(), "failed" | "cancelled")) {
            let kind = task.reason.split(':').next().unwrap_or_default();
            *failed.entry(format!("{} {kind}", task.state)).or_default() += 1;
        }
        let events = |noun, what| history.events.iter().filter(|event| event.is(noun, what)).count();
        Self {
            seed: history.seed,
            sites: history.acknowledged.len(),
            faults: history.faults.len(),
            by_fault,
            violations: Rule::ALL.into_iter().map(|rule| (rule.name(), count(rule))).collect(),
            failed,
            grants: events("lease", "granted"),
            sessions_expired: events("session", "expired"),
            took_s: history.ended_us as f64 / 1e6,
            recovery_s: recovery(history),
        }
    }

    pub fn table(&self) -> String {
        let faults: Vec<Vec<String>> =
            self.by_fault.iter().map(|(kind, count)| vec![kind.clone(), count.to_string()]).collect();
        let broken = |rule: Rule| self.violations.get(rule.name()).copied().unwrap_or_default();
        let rules = Rule::ALL.map(|rule| vec![rule.name().to_owned(), broken(rule).to_string()]);
        let (faults, rules) = (text_table(&["fault", "injected"], &faults), text_table(&["rule", "broken"], &rules));
        let seconds = |value: Option<f64>| value.map_or("none seen".to_owned(), |value| format!("{value:.1} s"));
        let failed: Vec<String> = self.failed.iter().map(|(what, count)| format!("{count} {what}")).collect();
        format!(
            "{faults}\n{rules}\n{} sites, {} faults in {:.0} s, seed {}; {} grants, {} sessions expired; not done: {}\n\
             granted again after an agent was killed: p99 {}; after a scheduler was killed: p99 {}\n",
            self.sites,
            self.faults,
            self.took_s,
            self.seed,
            self.grants,
            self.sessions_expired,
            if failed.is_empty() { "none".to_owned() } else { failed.join(", ") },
            seconds(self.recovery_s.agent_p99),
            seconds(self.recovery_s.scheduler_p99),
        )
    }
}

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
