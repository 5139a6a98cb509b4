//! Applies all rules to the history of a run, or only the rules of safety while the run continues.

use super::event_log::EventLog;
use super::history::History;
use super::leases_and_sessions::{incarnations, one_lease, session_first};
use super::lost_and_unfinished::{lost, unfinished};
use super::rule::Violation;
use super::terms::terms;
use super::tokens_and_outcomes::{newest_tokens, notices, of_task};
use super::{overlap, recovery};

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
