//! Finds gaps between fencing tokens, outcomes that were accepted twice or with an old token, and
//! grants and acknowledgements that the database does not contain.

use std::collections::{BTreeMap, BTreeSet};

use super::event_log::EventLog;
use super::history::{Event, History};
use super::rule::{Rule, Violation};

/// Finds violations in the events of a task.
pub(super) fn of_task(task: i64, events: &[&Event]) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut add = |rule, message| violations.push(Violation { rule, task: Some(task), message });
    let (mut newest, mut completions, mut ended) = (0, 0, None);
    for event in events {
        let token = event.token.unwrap_or_default();
        match (event.noun.as_str(), event.what.as_str()) {
            ("lease", "granted") => {
                if token != newest + 1 {
                    add(Rule::Tokens, format!("task {task}: token {token} was granted after token {newest}"));
                }
                newest = token;
            }
            ("lease", "completed") => {
                completions += 1;
                if completions > 1 {
                    add(Rule::DoubleCompleted, format!("task {task} was completed again, with token {token}"));
                }
                if token != newest {
                    add(
                        Rule::StaleAccepted,
                        format!("task {task} was completed with token {token} when {newest} was the newest"),
                    );
                }
                // One transaction writes both the completion of a lease and the end of its task, so
                // these two events may have any order.
                if let Some((state, xact)) = ended
                    && xact != event.xact
                {
                    add(Rule::StaleAccepted, format!("task {task} was completed after it was {state}"));
                }
            }
            ("task", state @ ("done" | "failed" | "cancelled")) => {
                if let Some((before, _)) = ended.replace((state, event.xact)) {
                    add(Rule::DoubleCompleted, format!("task {task} was {before} and then {state}"));
                }
            }
            ("task", _) if ended.is_some() => {
                add(Rule::StaleAccepted, format!("task {task} was {} after its end", event.what));
                ended = None;
            }
            _ => {}
        }
    }
    violations
}

/// Checks that the tokens of tasks and outcomes in the database match the tokens in the events.
pub(super) fn newest_tokens(history: &History, log: &EventLog<'_>) -> Vec<Violation> {
    let outcomes: BTreeMap<i64, i64> = history.outcomes.iter().map(|outcome| (outcome.task, outcome.token)).collect();
    let mut violations = Vec::new();
    for task in &history.tasks {
        let Some(events) = log.tasks.get(&task.id) else { continue };
        let granted = events.iter().filter(|event| event.is("lease", "granted")).count();
        if i64::try_from(granted) != Ok(task.token) {
            let message = format!("task {}: {granted} grants, and its newest token is {}", task.id, task.token);
            violations.push(Violation { rule: Rule::Tokens, task: Some(task.id), message });
        }
        let completed = events.iter().rfind(|event| event.is("lease", "completed")).and_then(|event| event.token);
        if completed != outcomes.get(&task.id).copied() {
            let message = format!(
                "task {}: completed with token {completed:?}, its outcome has {:?}",
                task.id,
                outcomes.get(&task.id)
            );
            violations.push(Violation { rule: Rule::Acknowledged, task: Some(task.id), message });
        }
    }
    violations
}

/// Checks that the database contains the grants and acknowledgements that agents received.
pub(super) fn notices(history: &History, log: &EventLog<'_>) -> Vec<Violation> {
    let recorded: BTreeSet<(i64, i64)> = history.outcomes.iter().map(|outcome| (outcome.task, outcome.token)).collect();
    let mut violations = Vec::new();
    for notices in &history.notices {
        let (task, token) = (notices.task, notices.token);
        if notices.accepted && !recorded.contains(&(task, token)) {
            let message = format!("the outcome of task {task}, token {token}, was acknowledged and is not recorded");
            violations.push(Violation { rule: Rule::Acknowledged, task: Some(task), message });
        }
        let events = log.tasks.get(&task).map_or(&[][..], Vec::as_slice);
        let is_it = |event: &&&Event| event.is("lease", "granted") && event.token == Some(token);
        if !notices.accepted && !events.iter().any(|event| is_it(&event) && event.agent == Some(notices.agent)) {
            let message =
                format!("agent {} was told of task {task}, token {token}, which it was not granted", notices.agent);
            violations.push(Violation { rule: Rule::Tokens, task: Some(task), message });
        }
    }
    violations
}
