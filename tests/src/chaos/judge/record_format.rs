//! The record of a run, which the judge reads, and its events grouped by task and by agent. The
//! sources of the record are the database, the client, the web servers, and the proxies between
//! agents and schedulers.
//!
//! Times are microseconds since the start of the run. Agents are identified by database id, and
//! sites by name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use sqlx::FromRow;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct History {
    pub seed: u64,
    /// The lifetime of a session without heartbeats, including the grace period.
    pub lifetime_us: i64,
    /// Number of schedulers; 0 in old records without this field.
    pub schedulers: usize,
    pub healed_us: i64,
    pub ended_us: i64,
    pub agents: BTreeMap<i64, String>,
    /// Names of the sites whose submission was acknowledged.
    pub acknowledged: Vec<String>,
    /// The tasks at the end of the run.
    pub tasks: Vec<Task>,
    /// The accepted outcomes at the end of the run.
    pub outcomes: Vec<Outcome>,
    pub events: Vec<Event>,
    /// Messages from schedulers to agents.
    #[serde(rename = "told")]
    pub notices: Vec<Notice>,
    /// Crawl requests that reached the sites.
    pub requests: Vec<Request>,
    pub faults: Vec<FaultRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, FromRow)]
pub struct Task {
    pub id: i64,
    pub site: String,
    pub state: String,
    /// The reason for the state; empty if there is none.
    pub reason: String,
    pub token: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, FromRow)]
pub struct Outcome {
    pub task: i64,
    pub token: i64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, FromRow)]
#[serde(default)]
pub struct Event {
    /// The number of the event. Later transitions of the same task, lease, session, agent or term
    /// have higher numbers.
    pub id: i64,
    pub xact: i64,
    pub at_us: i64,
    /// Which object changed: task, lease, session, agent or term.
    pub noun: String,
    pub what: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<i64>,
    /// The role and number of the term, as in `reap 2`; `None` if no leader wrote the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub term: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl Event {
    pub fn is(&self, noun: &str, what: &str) -> bool {
        self.noun == noun && self.what == what
    }
}

/// A message from a scheduler to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    pub at_us: i64,
    pub agent: i64,
    pub task: i64,
    pub token: i64,
    /// True for the acknowledgement of an outcome, false for the grant of a lease.
    pub accepted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub at_us: i64,
    pub site: String,
    pub agent: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRecord {
    pub kind: String,
    /// The affected agent; `None` if the fault affects a scheduler or the database.
    pub agent: Option<i64>,
    pub from_us: i64,
    pub to_us: i64,
}

/// Events grouped by task and by agent, in the order of their numbers.
pub(super) struct EventLog<'a> {
    pub(super) tasks: BTreeMap<i64, Vec<&'a Event>>,
    pub(super) agents: BTreeMap<i64, Vec<&'a Event>>,
}

impl<'a> EventLog<'a> {
    pub(super) fn of(history: &'a History) -> Self {
        let (mut tasks, mut agents) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
        for event in &history.events {
            if let Some(task) = event.task {
                tasks.entry(task).or_default().push(event);
            }
            if let Some(agent) = event.agent.filter(|_| event.noun != "task") {
                agents.entry(agent).or_default().push(event);
            }
        }
        tasks.values_mut().chain(agents.values_mut()).for_each(|events| events.sort_by_key(|event| event.id));
        Self { tasks, agents }
    }
}
