//! Capacity planning: predicts the mean round trip and the load of each agent for a changed fleet.
//!
//! Nothing is drawn at random. A strategy splits a site among agents in known shares (`gnp-top3`: a
//! third to each of the three nearest), and an agent's expected load is the sum of its shares.
//! Distances are computed from the coordinates of one embedding. Corrections learned from probes
//! and crawls for single pairs of an agent and a site are left out, because they are unknown for a
//! planned agent. Every site is assumed to be crawled once.
//!
//! Sites are processed in parts of fixed size, on as many threads as the caller sets. The sums of
//! the parts are added in order, so results do not depend on the number of threads.

mod fleet_prediction;
mod sites;
mod suggest;

pub use fleet_prediction::{
    Agent, AgentChange, Comparison, FleetPrediction, Load, SiteSplit, beside, compare, usual_slots, usual_speed,
};
pub use sites::{CapacityError, MOST_SITES, Sites};
pub use suggest::{Suggestion, suggest};

#[cfg(test)]
mod tests;
