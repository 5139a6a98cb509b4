//! Finds sites with two active leases, leases of old sessions, and leases that expired before their
//! session.

use std::collections::{BTreeMap, BTreeSet};

use super::event_log::EventLog;
use super::history::{Event, History};
use super::rule::{Rule, Violation};

pub(super) fn one_lease(history: &History, log: &EventLog<'_>) -> Vec<Violation> {
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

pub(super) fn incarnations(log: &EventLog<'_>) -> Vec<Violation> {
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
pub(super) fn session_first(history: &History) -> Vec<Violation> {
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
