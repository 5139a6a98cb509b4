//! Background jobs. Each job is an idempotent function of the stored state, run periodically and on
//! signals.
//!
//! A job gets its transactions only through its role ([`leadership::Leader`]), so it changes
//! nothing while another scheduler leads that role. A failed pass is logged once, and the next pass
//! tries again; there are no retries inside a pass. A panic in a job ends the process, because
//! `app::run` awaits every job and fails if one of them panics.

pub mod assign;
pub mod fit;
#[cfg(test)]
mod fixtures;
pub mod leadership;
pub mod locate;
pub mod measure;
pub mod period;
pub mod prune;
pub mod reap;
pub mod recrawl;
pub mod totals;
pub mod traces;
#[cfg(test)]
mod waiting_cost_tests;
