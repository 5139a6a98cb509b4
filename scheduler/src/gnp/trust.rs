//! Trust: decides which agents' measurements are used.
//!
//! A lying or broken landmark distorts every location computed from its measurements. Five kinds of
//! evidence distinguish a bad agent from an unusual path. Each kind uses all reports of the agent:
//!
//! - *asymmetry*: the agent's measurements of other agents contradict their measurements of it;
//! - *residual*: the agent's measurements of other agents contradict the map, on which the agent is
//!   located by the other agents' measurements alone;
//! - *sites*: the agent's measurements of sites contradict the other landmarks' measurements;
//! - *light*: the agent reports round trips that are shorter than light in fibre allows;
//! - *collusion*: agents report that they are near each other, but other agents' measurements show
//!   that they are far apart.
//!
//! The kinds asymmetry, residual and sites give log ratios of reported to expected round trips.
//! These ratios have a bias (their median) and a spread. An agent is quarantined if its bias or
//! spread exceeds a fixed limit and is also an outlier among the agents' values. The fixed limit
//! alone would not suffice, because networks differ in how symmetric they are. A bias must also be
//! several times as large as its own standard error.

mod evidence_and_findings;
mod fits_without_outliers;
mod proven_lies_and_claims;
#[cfg(test)]
mod tests;

pub use evidence_and_findings::{
    ALARM_ONE_IN, Alarm, CONSISTENT, Finding, FleetTrust, Kind, PROBATION_AGE, PROBATION_SITES, Trust, TrustEvidence,
    is_consistent,
};
pub use fits_without_outliers::{FEWEST_SITES, judge};
pub use proven_lies_and_claims::believed;
