//! Reports: the results of a batch's tasks, the work of each agent, and counts of crawls.

pub(crate) mod accuracy_failures_agents;
mod assignment_row;
mod assignments;
pub(crate) mod capacity_and_map;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod hosts;
pub(crate) mod remaining_time;
pub(crate) mod status;
pub(crate) mod throughput;

pub use accuracy_failures_agents::{AgentRow, CrawlFilter, Groups, ReportScope, agents};
pub use assignment_row::AssignmentRow;
pub use assignments::{AssignmentPages, TaskFilter};
