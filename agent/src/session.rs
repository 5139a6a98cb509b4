//! The agent's side of sessions: connects, registers, handles messages, drains and reconnects.
//!
//! One tokio task owns the stream and the `Work`, which outlives sessions. While the scheduler is
//! unreachable, crawls continue until the deadline of their leases. The deadline is counted from
//! the time at which the last acknowledged heartbeat was *sent*. At the deadline the agent stops
//! its crawls, because the scheduler may then have granted their leases to other agents. Outcomes
//! are stored, and are reported until they are acknowledged.

pub use opening::{AgentReplaced, SessionConfig, bearer};
pub use reconnect::run;

mod active_session;
mod convert;
pub(crate) mod enrol;
pub(crate) mod enrolment_files;
mod heartbeats;
pub(crate) mod known_schedulers;
mod lease_pause;
mod leased_crawl;
mod measurement_orders;
pub(crate) mod opening;
mod outgoing;
mod permits_and_events;
pub(crate) mod reconnect;
#[cfg(test)]
mod tests;
pub mod work;
