//! The judge of a run, which determines from independent sources what was lost or done twice.
//!
//! This module does no I/O. Each rule checks a [`history::History`] and returns its violations.
//! Safety rules must hold at all times. Liveness rules must hold only after all faults have ended.

mod all_rules;
mod event_log;
pub mod history;
mod leases_and_sessions;
mod lost_and_unfinished;
mod overlap;
pub mod recovery;
mod rule;
mod terms;
#[cfg(test)]
pub(super) mod tests;
mod tokens_and_outcomes;

pub use self::all_rules::{judge, safety};
pub use self::rule::{Rule, Violation};
