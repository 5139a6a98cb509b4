//! Reports: the results of a batch's tasks, the work of each agent, and counts of crawls.

pub use agents::{AgentRow, agents};
pub use assignment_row::AssignmentRow;
pub use assignments::{AssignmentPages, TaskFilter};
pub use filters::{CrawlFilter, ReportScope};
pub use groups::Groups;

pub(crate) mod accuracy;
mod agents;
mod assignment_row;
mod assignments;
pub(crate) mod capacity;
pub(crate) mod events;
pub(crate) mod explain;
pub(crate) mod failures;
mod filters;
mod groups;
pub(crate) mod hosts;
pub(crate) mod map;
pub(crate) mod minutes;
pub(crate) mod remaining_time;
pub(crate) mod status;
pub(crate) mod throughput;
