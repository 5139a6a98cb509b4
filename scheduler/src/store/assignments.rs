//! Assignments: each is one choice of an agent for a task. A repeated choice inserts a new row.
//!
//! Only this module and its submodules move a task from `located` to `assigned`, and back to
//! `located` if its agent is no longer available.

pub(crate) mod available_agents;
pub(crate) mod loads;
pub(crate) mod movable_tasks;
pub(crate) mod past_crawls;
mod recorded_choices;
pub(crate) mod site_facts;
mod unassign;
mod waiting;

pub use recorded_choices::{Assignment, insert};
pub use unassign::{UnassignScope, unassign};
pub use waiting::{Pool, WaitingTask, still_waiting, waiting};
