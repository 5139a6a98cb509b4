//! The agent's side of sessions: connects, registers, handles messages, drains and reconnects.
//!
//! One tokio task owns the stream and the `Work`, which outlives sessions. While the scheduler is
//! unreachable, crawls continue until the deadline of their leases. The deadline is counted from
//! the time at which the last acknowledged heartbeat was *sent*. At the deadline the agent stops
//! its crawls, because the scheduler may then have granted their leases to other agents. Outcomes
//! are stored, and are reported until they are acknowledged.

pub use credential::bearer;
pub use opening::{AgentReplaced, SessionConfig};
pub use reconnect::run;

mod active_session;
pub(crate) mod backoff;
mod convert;
mod credential;
mod deadline;
mod drain;
pub(crate) mod endpoint;
pub(crate) mod enrol;
mod event;
mod heartbeats;
mod leased_crawl;
mod opening;
mod outgoing;
mod permits;
mod reconnect;
pub(crate) mod schedulers;
#[cfg(test)]
mod tests;
pub(crate) mod unreached;
pub mod work;
