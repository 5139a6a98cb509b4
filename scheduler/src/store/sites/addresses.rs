//! Addresses: how many crawls each address permits, which crawls use it, and which task is admitted
//! next.
//!
//! An agent requests a permit for the address of a leased site before it sends any request there.
//! The number of active leases with a permit for one address is limited, counted over all agents.
//! The limit grows with the number of known sites at the address, up to a cap
//! (`model::address_budget`). Each crawl limits its own request rate, so the rate at an address is
//! at most this limit times the rate of one crawl. If an address is already at its limit, a further
//! lease gets no permit and ends, and its task is held (`crate::store::tasks::holds`). When a crawl
//! at the address ends, the task that has been held longest is admitted. If an earlier crawl found
//! the site's address, the address is also checked before an agent is chosen
//! ([`hold_before_lease`]).
//!
//! Invariant: the number of active crawls at an address plus the number of tasks admitted to it
//! never exceeds the permitted number.

mod admission;
pub mod hold_before_lease;
mod permits;
mod room;

pub use admission::admit;
pub use permits::{PermitRequest, PermitResult, note_address, permit};
