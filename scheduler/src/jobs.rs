//! Background jobs. Each job is an idempotent function of the stored state, run periodically and on
//! signals.
//!
//! A job gets its transactions only through its role ([`leadership::Leader`]), so it changes
//! nothing while another scheduler leads that role. A panic in a job ends the process, because
//! `app::run` awaits every job and fails if one of them panics.

#[cfg(test)]
mod address_lock_tests;
pub mod assign;
pub mod changes;
pub mod fit;
#[cfg(test)]
mod fixtures;
pub mod geoip;
pub mod leadership;
pub mod locate;
pub mod measure;
pub mod period;
mod predictor;
pub mod prune;
pub mod reap;
pub mod recrawl;
pub mod refined_map;
pub mod totals;
pub mod traces;
#[cfg(test)]
mod waiting_cost_tests;
