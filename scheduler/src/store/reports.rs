//! Reports: the results of a batch's tasks, what each agent has done, and counts of crawls.

use chrono::{DateTime, Utc};

use crate::model::{AgentId, BatchId, ReportGroup};

pub use assignment_row::AssignmentRow;
pub use assignments::{AssignmentPages, TaskFilter};
pub use fleet::{AgentRow, agents};

pub(crate) mod accuracy;
mod assignment_row;
mod assignments;
pub(crate) mod capacity;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod failures;
mod fleet;
pub(crate) mod map;
pub(crate) mod minutes;
pub(crate) mod status;
pub(crate) mod throughput;

/// Selects crawls, or sites by their newest choice of an agent.
#[derive(Debug, Clone, Default)]
pub struct CrawlFilter {
    /// `None`: of any batch.
    pub batch: Option<BatchId>,
    /// `None`: any agent, or none.
    pub agents: Option<Vec<AgentId>>,
    /// They ended at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// They ended before this time.
    pub until: Option<DateTime<Utc>>,
}

/// What rows are about: one row for each combination of values. Without any there is one row.
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
