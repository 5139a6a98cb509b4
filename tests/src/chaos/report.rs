//! Prints the results of a run as a table or as JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::judge::{Rule, Violation};
use crate::chaos::judge::history::History;
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
