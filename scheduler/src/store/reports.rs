//! Reports: the results of a batch's tasks, and what each agent has done.

pub use assignment_row::AssignmentRow;
pub use assignments::{AssignmentPages, TaskFilter};
pub use fleet::{AgentRow, agents};

mod assignment_row;
mod assignments;
pub(crate) mod capacity;
pub(crate) mod events;
pub(crate) mod explain;
mod fleet;
pub(crate) mod map;
pub(crate) mod minutes;
pub(crate) mod status;
pub(crate) mod throughput;
