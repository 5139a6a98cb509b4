//! The judge of a run, which determines from independent sources what was lost or done twice.
//!
//! This module does no I/O. Each rule checks a [`record_format::History`] and returns its
//! violations. Safety rules must hold at all times. Liveness rules must hold only after all faults
//! have ended.

pub mod record_format;
pub mod recovery;
mod safety_rules;
#[cfg(test)]
pub(super) mod tests;

pub use self::recovery::judge;
pub use self::safety_rules::{Rule, Violation, safety};
