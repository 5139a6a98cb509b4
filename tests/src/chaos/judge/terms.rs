//! Finds events that an earlier leader wrote after a new term had begun.

use std::collections::BTreeMap;

use super::history::{Event, History};
use super::rule::{Rule, Violation};

/// Checks that events are ordered by term. A new term starts after all transactions of the previous
/// term have ended, so events of the previous term have lower numbers.
pub(super) fn terms(history: &History) -> Vec<Violation> {
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
