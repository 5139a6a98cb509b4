//! Reports: the results of a batch's tasks, the work of each agent, and counts of crawls.

use chrono::{DateTime, Utc};

use crate::model::{AgentId, BatchId, ReportGroup};

pub use agents::{AgentRow, agents};
pub use assignment_row::AssignmentRow;
pub use assignments::{AssignmentPages, TaskFilter};

pub(crate) mod accuracy;
mod agents;
mod assignment_row;
mod assignments;
pub(crate) mod capacity;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod failures;
pub(crate) mod hosts;
pub(crate) mod map;
pub(crate) mod minutes;
pub(crate) mod status;
pub(crate) mod throughput;

/// Selects crawls, or selects sites by the agent of their newest assignment.
#[derive(Debug, Clone, Default)]
pub struct CrawlFilter {
    /// `None` selects all batches.
    pub batch: Option<BatchId>,
    /// `None` selects all agents, and also sites without an agent.
    pub agents: Option<Vec<AgentId>>,
    /// The crawls ended at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// The crawls ended before this time.
    pub until: Option<DateTime<Utc>>,
}

/// The properties by which rows are grouped: one row for each combination of their values. If no
/// property is set, there is only one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Groups {
    pub agent: bool,
    pub city: bool,
    pub carrier: bool,
    pub day: bool,
    pub reason: bool,
    pub batch: bool,
}

impl Groups {
    pub fn of(groups: &[ReportGroup]) -> Self {
        let has = |group| groups.contains(&group);
        Self {
            agent: has(ReportGroup::Agent),
            city: has(ReportGroup::City),
            carrier: has(ReportGroup::Carrier),
            day: has(ReportGroup::Day),
            reason: has(ReportGroup::Reason),
            batch: has(ReportGroup::Batch),
        }
    }
}
