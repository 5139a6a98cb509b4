//! The judge of a run, which determines from independent sources what was lost or done twice.
//!
//! This module does no I/O. Each rule checks a [`History`] and returns its violations. Safety rules
//! must hold at all times. Liveness rules must hold only after all faults have ended.

use std::collections::{BTreeMap, BTreeSet};

use self::event_log::EventLog;
use self::history::{Event, History};
pub use self::rule::{Rule, Violation};

mod event_log;
pub mod history;
mod overlap;
pub mod recovery;
mod rule;
#[cfg(test)]
mod tests;

/// All violations of a finished run.
pub fn judge(history: &History) -> Vec<Violation> {
    let mut violations = safety(history);
    let log = EventLog::of(history);
    violations.extend(recovery::orphans(history, &log));
    violations.extend(unfinished(history));
    violations
}

/// All violations of safety rules. The run need not have ended.
pub fn safety(history: &History) -> Vec<Violation> {
    let log = EventLog::of(history);
    let mut violations = lost(history);
    violations.extend(log.tasks.iter().flat_map(|(task, events)| of_task(*task, events)));
    violations.extend(newest_tokens(history, &log));
    violations.extend(overlap::violations(history));
    violations.extend(one_lease(history, &log));
    violations.extend(incarnations(&log));
    violations.extend(session_first(history));
    violations.extend(terms(history));
    violations.extend(notices(history, &log));
    violations
}

fn lost(history: &History) -> Vec<Violation> {
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

/// Finds violations in the events of a task.
fn of_task(task: i64, events: &[&Event]) -> Vec<Violation> {
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
fn newest_tokens(history: &History, log: &EventLog<'_>) -> Vec<Violation> {
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

fn one_lease(history: &History, log: &EventLog<'_>) -> Vec<Violation> {
    let mut by_site: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for task in &history.tasks {
        let leases = log.tasks.get(&task.id).into_iter().flatten().filter(|event| event.noun == "lease");
        by_site.entry(&task.site).or_default().extend(leases);
    }
    let mut violations = Vec::new();
    for (site, mut leases) in by_site {
        leases.sort_by_key(|event| event.id);
        let mut active = BTreeSet::new();
        for event in leases {
            let key = (event.task, event.token);
            match event.what.as_str() {
                "granted" => {
                    active.insert(key);
                    if active.len() > 1 {
                        let message = format!("{site} had {} active leases at once", active.len());
                        violations.push(Violation { rule: Rule::OneLease, task: event.task, message });
                    }
                }
                "rebound" => {}
                _ => _ = active.remove(&key),
            }
        }
    }
    violations
}

fn incarnations(log: &EventLog<'_>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (agent, events) in &log.agents {
        let mut newest = 0;
        for event in events {
            let Some(incarnation) = event.incarnation else { continue };
            let opened = event.is("session", "opened");
            let gives = event.is("lease", "granted") || event.is("lease", "rebound");
            if (opened && incarnation <= newest) || (gives && incarnation != newest && newest > 0) {
                let message = format!("agent {agent}: {} of incarnation {incarnation} after {newest}", event.what);
                violations.push(Violation { rule: Rule::Incarnations, task: event.task, message });
            }
            if opened {
                newest = newest.max(incarnation);
            }
        }
    }
    violations
}

/// Checks that each session ends before its leases expire. If leases expired before their session,
/// a late heartbeat could renew a session whose tasks were already granted to other agents.
fn session_first(history: &History) -> Vec<Violation> {
    let ends = history.events.iter().filter(|event| event.noun == "session" && event.what != "opened");
    let ended: BTreeMap<i64, i64> = ends.filter_map(|event| Some((event.session?, event.id))).collect();
    let taken = history.events.iter().filter(|event| event.is("lease", "expired"));
    taken
        .filter(|lease| {
            let end = lease.session.and_then(|session| ended.get(&session));
            end.is_none_or(|end| *end > lease.id)
        })
        .map(|lease| Violation {
            rule: Rule::SessionFirst,
            task: lease.task,
            message: format!(
                "the lease of task {:?} was taken before session {:?} had ended",
                lease.task, lease.session
            ),
        })
        .collect()
}

/// Checks that events are ordered by term. A new term starts after all transactions of the previous
/// term have ended, so events of the previous term have lower numbers.
fn terms(history: &History) -> Vec<Violation> {
    let mut written: Vec<(&Event, &str, u64)> = history
        .events
        .iter()
        .filter_map(|event| {
            let (role, number) = event.term.as_deref()?.split_once(' ')?;
            Some((event, role, number.parse().ok()?))
        })
        .collect();
    written.sort_by_key(|(event, ..)| event.id);
    let mut newest: BTreeMap<&str, u64> = BTreeMap::new();
    let mut violations = Vec::new();
    for (event, role, number) in written {
        let known = newest.entry(role).or_default();
        let taken = event.is("term", "taken");
        if number < *known || (taken && number == *known) {
            let message =
                format!("{} {} under term {number} of {role}, when {known} had been taken", event.noun, event.what);
            violations.push(Violation { rule: Rule::Terms, task: event.task, message });
        }
        if taken {
            *known = number.max(*known);
        }
    }
    violations
}

/// Checks that the database contains the grants and acknowledgements that agents received.
fn notices(history: &History, log: &EventLog<'_>) -> Vec<Violation> {
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

fn unfinished(history: &History) -> Vec<Violation> {
    let open = history.tasks.iter().filter(|task| !matches!(task.state.as_str(), "done" | "failed" | "cancelled"));
    open.map(|task| Violation {
        rule: Rule::Unfinished,
        task: Some(task.id),
        message: format!("task {} ({}) is {} ({})", task.id, task.site, task.state, task.reason),
    })
    .collect()
}
