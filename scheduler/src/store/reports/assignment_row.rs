//! The rows of the report of assignments, and how they are stored.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::model::{ChoiceReasons, OutcomeKind, ReasonKind, Rtt, SiteId, Strategy, TaskId, TaskState};
use crate::store::types::{Millis, Unsigned};
use crate::strategy::explain::ExplainedWait;

/// The key of a row. The next page continues after the key of the last row. Rows are in the order
/// in which their sites were first stored; sites of the same list are in order of their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ListKey {
    pub(super) site: i64,
    pub(super) round: u32,
}

impl ListKey {
    const fn new(site: SiteId, round: u32) -> Self {
        Self { site: site.get(), round }
    }
}

/// A task and its result.
#[derive(Debug, Clone, PartialEq)]
pub struct AssignmentRow {
    pub task: TaskId,
    /// The row's position in the report.
    pub key: ListKey,
    pub round: u32,
    /// The site's name as submitted.
    pub site: String,
    pub origin: Option<String>,
    pub state: TaskState,
    pub state_since: DateTime<Utc>,
    pub reason: Option<String>,
    /// The agent's message about the end of the crawl.
    pub message: Option<String>,
    /// Why the task waits, if it has no agent.
    pub waits: Option<ExplainedWait>,
    /// Why the task failed or was cancelled.
    pub reason_kind: Option<ReasonKind>,
    /// The confidence with which the site is suspected to stand in several places; `None` if it is
    /// not suspected.
    pub anycast: Option<f64>,
    pub choice: Option<NewestChoice>,
    pub assignments: u32,
    pub outcome: Option<Outcome>,
    /// Number of samples, answered or lost, in the newest measurements of the site, summed over the
    /// probers. A shared measurement counts as zero samples.
    pub probes: u64,
    /// Number of requests sent to measure the site, in all measurements.
    pub requests: u64,
    /// Number of the samples in `probes` that were taken for confirmations.
    pub confirming_probes: u64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct NewestChoice {
    pub agent: String,
    pub city: String,
    pub carrier: String,
    pub strategy: Strategy,
    /// Why this agent was chosen and, if a fallback was applied, the cause of the fallback.
    pub why: ChoiceReasons,
    /// The agent's rank among the candidates, from 1.
    pub rank: Option<u32>,
    pub predicted: Option<Rtt>,
    /// The round trip measured before the crawl.
    pub measured: Option<Rtt>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub kind: OutcomeKind,
    pub pages: u32,
    pub bytes: u64,
    pub errors: u32,
    /// When the crawl began, by the agent's clock.
    pub started_at: DateTime<Utc>,
    pub duration: Duration,
    /// The median round trip of the crawl.
    pub rtt: Option<Rtt>,
}

/// A row as stored. The columns of the assignment are null if there is no assignment, and the
/// columns of the outcome if there is no outcome.
pub(super) struct TaskRow {
    pub(super) id: TaskId,
    pub(super) site_id: SiteId,
    pub(super) round: u32,
    pub(super) site: String,
    pub(super) origin: Option<String>,
    pub(super) state: TaskState,
    pub(super) state_since: DateTime<Utc>,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    pub(super) reason_kind: Option<ReasonKind>,
    pub(super) agent: Option<String>,
    pub(super) city: Option<String>,
    pub(super) carrier: Option<String>,
    pub(super) strategy: Option<Strategy>,
    pub(super) detail: Option<ChoiceReasons>,
    pub(super) anycast: Option<f64>,
    pub(super) rank: Option<Unsigned<u32>>,
    pub(super) predicted_us: Option<Rtt>,
    pub(super) measured_us: Option<Rtt>,
    pub(super) assignments: Unsigned<u32>,
    pub(super) kind: Option<OutcomeKind>,
    pub(super) pages: Option<Unsigned<u32>>,
    pub(super) bytes: Option<Unsigned<u64>>,
    pub(super) errors: Option<Unsigned<u32>>,
    pub(super) started_at: Option<DateTime<Utc>>,
    pub(super) duration_ms: Option<Millis>,
    pub(super) rtt_us: Option<Rtt>,
    pub(super) probes: Unsigned<u64>,
    pub(super) requests: Unsigned<u64>,
    pub(super) confirming_probes: Unsigned<u64>,
}

impl TaskRow {
    fn choice(&mut self) -> Option<NewestChoice> {
        let (Some(agent), Some(city), Some(carrier), Some(strategy)) =
            (self.agent.take(), self.city.take(), self.carrier.take(), self.strategy)
        else {
            return None;
        };
        Some(NewestChoice {
            agent,
            city,
            carrier,
            strategy,
            why: self.detail.take().unwrap_or_default(),
            rank: self.rank.map(u32::from),
            predicted: self.predicted_us,
            measured: self.measured_us,
        })
    }

    fn outcome(&mut self) -> Option<Outcome> {
        let (Some(kind), Some(pages), Some(bytes), Some(errors), Some(started_at), Some(duration)) =
            (self.kind, self.pages, self.bytes, self.errors, self.started_at, self.duration_ms)
        else {
            return None;
        };
        Some(Outcome {
            kind,
            pages: pages.0,
            bytes: bytes.0,
            errors: errors.0,
            started_at,
            duration: duration.0,
            rtt: self.rtt_us,
        })
    }
}

impl From<TaskRow> for AssignmentRow {
    fn from(mut row: TaskRow) -> Self {
        let (choice, outcome) = (row.choice(), row.outcome());
        Self {
            task: row.id,
            key: ListKey::new(row.site_id, row.round),
            round: row.round,
            site: row.site,
            origin: row.origin,
            state: row.state,
            state_since: row.state_since,
            reason: row.reason,
            message: row.message,
            waits: None,
            reason_kind: row.reason_kind,
            anycast: row.anycast,
            choice,
            assignments: row.assignments.0,
            outcome,
            probes: row.probes.0,
            requests: row.requests.0,
            confirming_probes: row.confirming_probes.0,
        }
    }
}
