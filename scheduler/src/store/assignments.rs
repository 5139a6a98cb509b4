//! Assignments: each is one choice of an agent for a task. A repeated choice inserts a new row.
//!
//! Only this module and its submodules move a task from `located` to `assigned`, and back to
//! `located` if its agent is no longer available.

pub(crate) mod agents_and_loads;
mod choices_and_withdrawals;
pub(crate) mod past_crawls_and_site_facts;
pub(crate) mod waiting_tasks;

pub use choices_and_withdrawals::{Assignment, UnassignScope, insert, unassign};
pub use waiting_tasks::{Pool, WaitingTask, still_waiting, waiting};
