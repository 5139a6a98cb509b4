//! Leases: an agent session's right to crawl a task's site, fenced by a token.
//!
//! Invariants: each grant raises the task's token by one, except that the first grant after a
//! restore raises it by more. Nothing else changes the token. A site has at most one active lease
//! (a unique index). A lease is active only while its task is `leased` with the same token.

pub(crate) mod checkpoints;
mod ending;
mod granting;
pub(crate) mod outcomes;
pub(crate) mod preemptions;

pub(super) use ending::{Completed, Ending, complete, end, revoke};
pub use ending::{LeaseState, ReleaseScope, pause, release, release_of_ended_sessions, take_overdue, take_revoked};
pub use granting::{ActiveLease, FreeSlots, Grant, fill, grant, held, holder, last_pages, lock, rebind};
