//! Assigns an agent to every located task.
//!
//! The pure module `strategy` makes the choice; this module only reads the input and stores the
//! result. A measured round trip takes precedence over a predicted one. Agents without an active
//! session, draining agents, and agents excluded by the batch's constraints are not candidates. A
//! task without a candidate waits or fails. If a batch's constraints start to exclude an agent, the
//! batch's tasks that the agent has not begun are withdrawn from it.

pub mod balance;
mod choice;
pub mod confirm;
mod confirmation_holds;
pub(super) mod distances;
pub(super) mod exclusions;
mod holds;
mod one_by_one;
mod pass;
pub(super) mod plan;
pub(super) mod preempt;
mod unmet;
mod withdrawal;

pub use pass::Assign;
