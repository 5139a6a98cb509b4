//! Sessions: one row per connection of an agent, renewed by heartbeats.
//!
//! Invariants: an agent has at most one active session (a unique index). The active session is the
//! one with the newest incarnation. A session is marked as ended before its leases are released,
//! never after.

mod ending;
mod extension;
mod heartbeats;
mod newest_session;
mod opening;
mod pending_messages;

pub(in crate::store) use ending::close_active;
pub use ending::{EndCause, close, end_cause, expire_due};
pub(in crate::store) use extension::extend;
pub use heartbeats::{MachineReport, disconnect, pause, renew};
pub use newest_session::{NewestSession, SessionState, newest};
pub use opening::{OpenError, OpenedSession, Registration, SessionTerms, open};
pub use pending_messages::{PendingMessages, waiting};
