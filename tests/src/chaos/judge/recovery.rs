//! The recovery times of a run, and all violations of a finished run, including tasks that were
//! granted again too late or did not end.
//!
//! After an agent is killed, each of its tasks has a recovery time, which ends when the task is
//! granted again. After a scheduler is killed, there is one recovery time, which ends when any task
//! is granted.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::Serialize;

use super::record_format::{Event, EventLog, History};
use super::safety_rules::{Rule, Violation, safety};

pub const AGENT_KILL: &str = "agent_kill";
pub const SCHEDULER_KILL: &str = "scheduler_kill";

/// The 99th percentiles of the recovery times, in seconds; `None` if there are none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Recovery {
    /// Time from the killing of an agent until each of its tasks is granted again.
    pub agent_p99: Option<f64>,
    /// Number of recovery times in `agent_p99`, one per task.
    #[serde(skip)]
    pub agent_tasks: usize,
    /// Time from the killing of a scheduler to the next grant, if tasks were waiting. The time
    /// during which all schedulers were down is subtracted.
    pub scheduler_p99: Option<f64>,
    /// Number of recovery times in `scheduler_p99`, one per kill.
    #[serde(skip)]
    pub scheduler_kills: usize,
}

/// All violations of a finished run.
pub fn judge(history: &History) -> Vec<Violation> {
    let mut violations = safety(history);
    let log = EventLog::of(history);
    violations.extend(orphans(history, &log));
    violations.extend(unfinished(history));
    violations
}

pub fn recovery(history: &History) -> Recovery {
    let mut grants: Vec<&Event> = history.events.iter().filter(|event| event.is("lease", "granted")).collect();
    grants.sort_by_key(|event| event.at_us);
    let mut leases: BTreeMap<i64, Vec<&Event>> = BTreeMap::new();
    for event in history.events.iter().filter(|event| event.noun == "lease") {
        leases.entry(event.task.unwrap_or_default()).or_default().push(event);
    }
    leases.values_mut().for_each(|events| events.sort_by_key(|event| event.id));
    let agents = regrants(history, &leases);
    let waits = waits(history);
    let somebody_waited = |at: i64| waits.iter().any(|wait| wait.contains(&at));
    let kills = history.faults.iter().filter(|fault| fault.kind == SCHEDULER_KILL && somebody_waited(fault.from_us));
    let schedulers: Vec<i64> = kills
        .filter_map(|kill| {
            let next = grants.partition_point(|grant| grant.at_us < kill.from_us);
            let grant = grants.get(next)?.at_us;
            Some(grant - kill.from_us - all_down(history, kill.from_us, grant))
        })
        .collect();
    Recovery {
        agent_tasks: agents.len(),
        agent_p99: p99(agents),
        scheduler_kills: schedulers.len(),
        scheduler_p99: p99(schedulers),
    }
}

/// Total time between `from_us` and `to_us` during which all schedulers were down, in microseconds.
fn all_down(history: &History, from_us: i64, to_us: i64) -> i64 {
    let kills = || history.faults.iter().filter(|fault| fault.kind == SCHEDULER_KILL);
    let mut moments: Vec<i64> = kills().flat_map(|kill| [kill.from_us, kill.to_us]).collect();
    moments.retain(|moment| (from_us..to_us).contains(moment));
    moments.extend([from_us, to_us]);
    moments.sort_unstable();
    let down = |at: i64| kills().filter(|kill| (kill.from_us..kill.to_us).contains(&at)).count();
    let spans = moments.windows(2).filter(|span| history.schedulers > 0 && down(span[0]) >= history.schedulers);
    spans.map(|span| span[1] - span[0]).sum()
}

/// The periods during which assigned tasks waited for their leases, one period per grant of a
/// lease.
fn waits(history: &History) -> Vec<Range<i64>> {
    let mut events: Vec<&Event> = history.events.iter().collect();
    events.sort_by_key(|event| event.id);
    let (mut assigned, mut waits) = (BTreeMap::new(), Vec::new());
    for event in events {
        let Some(task) = event.task else { continue };
        if event.is("task", "assigned") {
            assigned.insert(task, event.at_us);
        } else if event.is("lease", "granted") {
            waits.extend(assigned.remove(&task).map(|since| since..event.at_us));
        }
    }
    waits
}

/// The times in microseconds from the killing of an agent until each of its tasks is granted again.
fn regrants(history: &History, leases: &BTreeMap<i64, Vec<&Event>>) -> Vec<i64> {
    let mut waits = Vec::new();
    for events in leases.values() {
        let mut granted: Option<&Event> = None;
        let mut killed: Option<i64> = None;
        for event in events {
            match event.what.as_str() {
                "granted" => {
                    waits.extend(killed.take().map(|killed| event.at_us - killed));
                    granted = Some(event);
                }
                "expired" => {
                    let held = granted.map(|granted| granted.at_us..event.at_us);
                    let kills = history.faults.iter().filter(|fault| {
                        fault.kind == AGENT_KILL
                            && fault.agent == event.agent
                            && held.as_ref().is_some_and(|held| held.contains(&fault.from_us))
                    });
                    killed = kills.map(|kill| kill.from_us).min();
                }
                _ => {}
            }
        }
    }
    waits
}

#[expect(clippy::cast_precision_loss, reason = "microseconds of a run fit a double exactly")]
fn p99(mut waits: Vec<i64>) -> Option<f64> {
    waits.sort_unstable();
    let last = waits.len().checked_sub(1)?;
    waits.get((last * 99).div_ceil(100)).map(|wait| *wait as f64 / 1e6)
}

/// Finds tasks that lost their lease and were not granted again within three session lifetimes.
fn orphans(history: &History, log: &EventLog<'_>) -> Vec<Violation> {
    let patience = 3 * history.lifetime_us;
    let mut violations = Vec::new();
    for (task, events) in &log.tasks {
        for (index, event) in events.iter().enumerate() {
            if event.noun != "lease" || !matches!(event.what.as_str(), "expired" | "released") {
                continue;
            }
            let next = events[index + 1..].iter().find(|next| {
                next.is("lease", "granted")
                    || next.is("lease", "completed")
                    || (next.noun == "task" && matches!(next.what.as_str(), "done" | "failed" | "cancelled"))
            });
            let from = event.at_us.max(history.healed_us);
            let until = next.map_or(history.ended_us, |next| next.at_us);
            if until.saturating_sub(from) > patience {
                let waited = until.saturating_sub(from) / 1000;
                let message =
                    format!("task {task} waited {waited} ms for a new lease, {} are allowed", patience / 1000);
                violations.push(Violation { rule: Rule::Orphans, task: Some(*task), message });
            }
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
