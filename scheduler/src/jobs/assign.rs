//! Assigns an agent to every located task.
//!
//! The pure module `strategy` makes the choice; this module only reads the input and stores the
//! result. A measured round trip takes precedence over a predicted one. Agents without an active
//! session, draining agents, and agents excluded by the batch's constraints are not candidates. A
//! task without a candidate waits or fails. If a batch's constraints start to exclude an agent, the
//! batch's tasks that the agent has not begun are withdrawn from it.

pub mod balance;
mod choice;
pub mod confirmation;
mod distances;
mod exclusions_and_holds;
mod plan_decisions;
mod plan_windows;
mod preempt;

pub use choice::Assign;
