//! Finds acknowledged sites without a task, and tasks that did not end.

use std::collections::BTreeSet;

use super::history::History;
use super::rule::{Rule, Violation};

pub(super) fn lost(history: &History) -> Vec<Violation> {
    let known: BTreeSet<&str> = history.tasks.iter().map(|task| task.site.as_str()).collect();
    let missing = history.acknowledged.iter().filter(|site| !known.contains(site.as_str()));
    missing
        .map(|site| Violation {
            rule: Rule::Lost,
            task: None,
            message: format!("{site} was acknowledged and has no task"),
        })
        .collect()
}

pub(super) fn unfinished(history: &History) -> Vec<Violation> {
    let open = history.tasks.iter().filter(|task| !matches!(task.state.as_str(), "done" | "failed" | "cancelled"));
    open.map(|task| Violation {
        rule: Rule::Unfinished,
        task: Some(task.id),
        message: format!("task {} ({}) is {} ({})", task.id, task.site, task.state, task.reason),
    })
    .collect()
}
