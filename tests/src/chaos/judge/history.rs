//! What happened in a run, as the judge reads it: from the database, from the client, from the web servers, and from what
//! was overheard between agents and schedulers.
//!
//! Times are microseconds since the run began. Agents are known by their identifier in the database, sites by their name.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct History {
    /// What drew the faults.
    pub seed: u64,
    /// How long a session lives without a renewal, the grace included.
    pub lifetime_us: i64,
    /// How many schedulers there were; 0 in records that do not say.
    pub schedulers: usize,
    /// When the last fault had been healed.
    pub healed_us: i64,
    /// When the run was over.
    pub ended_us: i64,
    pub agents: BTreeMap<i64, String>,
    /// The sites whose submission was acknowledged.
    pub acknowledged: Vec<String>,
    /// The tasks as they are in the end.
    pub tasks: Vec<Task>,
    /// The outcomes as they are in the end.
    pub outcomes: Vec<Outcome>,
    /// The log of transitions.
    pub events: Vec<Event>,
    /// What agents were told.
    #[serde(rename = "told")]
    pub notices: Vec<Notice>,
    /// The requests of crawls that reached the sites.
    pub requests: Vec<Request>,
    /// What was done to the system.
    pub faults: Vec<FaultRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    pub id: i64,
    pub site: String,
    pub state: String,
    /// Why it is in that state; empty when nothing is said.
    pub reason: String,
    /// The newest token.
    pub token: i64,
}

/// An outcome that is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub task: i64,
    /// The token it came with.
    pub token: i64,
}

/// A row of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// Its number: of one row of the database a later transition has a higher one.
    pub id: i64,
    /// The transaction that wrote it.
    pub xact: i64,
    pub at_us: i64,
    /// task, lease, session, agent or term.
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
    /// The role and the number of the term it was written under.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub term: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl Event {
    /// Whether it is this.
    pub fn is(&self, noun: &str, what: &str) -> bool {
        self.noun == noun && self.what == what
    }
}

/// What a scheduler told an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    pub at_us: i64,
    pub agent: i64,
    pub task: i64,
    pub token: i64,
    /// That an outcome is recorded; else that a lease is granted.
    pub accepted: bool,
}

/// A request of a crawl.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub at_us: i64,
    pub site: String,
    pub agent: i64,
}

/// A fault.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultRecord {
    pub kind: String,
    /// The agent it befell; none when it befell everybody.
    pub agent: Option<i64>,
    pub from_us: i64,
    /// When it was over.
    pub to_us: i64,
}

impl History {
    /// What is left of it when only these tasks are looked at; what concerns no task stays.
    #[must_use]
    pub fn of_tasks(&self, keep: impl Fn(i64) -> bool) -> Self {
        let mut part = self.clone();
        part.tasks.retain(|task| keep(task.id));
        let sites: Vec<&String> = part.tasks.iter().map(|task| &task.site).collect();
        let all: std::collections::BTreeSet<&String> = self.tasks.iter().map(|task| &task.site).collect();
        // A site without a task is why somebody looks.
        part.acknowledged.retain(|site| sites.contains(&site) || !all.contains(site));
        part.requests.retain(|request| sites.contains(&&request.site));
        part.outcomes.retain(|outcome| keep(outcome.task));
        part.events.retain(|event| event.task.is_none_or(&keep));
        part.notices.retain(|notices| keep(notices.task));
        part
    }
}
