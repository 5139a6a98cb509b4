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

use std::num::NonZeroUsize;

mod agent;
mod error;
mod fleet;
mod load;
mod site_split;
mod sites;
mod suggest;

pub use agent::{Agent, AgentChange, beside, usual_slots, usual_speed};
pub use error::CapacityError;
pub use load::{FleetPrediction, Load};
pub use site_split::SiteSplit;
pub use sites::{MOST_SITES, Sites};
pub use suggest::{Suggestions, suggest};

use fleet::Fleet;
use load::of_all_sites;

#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The prediction for the fleet without the agents to be added.
    pub before: FleetPrediction,
    /// The prediction for the fleet without the agents to be removed.
    pub after: FleetPrediction,
}

/// Predicts loads and round trips for the fleet before and after the change.
pub fn compare(
    sites: &Sites,
    agents: &[Agent],
    split: SiteSplit,
    threads: NonZeroUsize,
) -> Result<Comparison, CapacityError> {
    if sites.is_empty() {
        return Err(CapacityError::NoSites);
    }
    let fleet_without = |change: AgentChange| Fleet::of(sites, agents, change);
    let before = fleet_without(AgentChange::Comes)?.ok_or(CapacityError::NoAgents(sites.epoch()))?;
    let after = fleet_without(AgentChange::Leaves)?.ok_or(CapacityError::NobodyLeft(sites.epoch()))?;
    // An agent's sums over all sites do not depend on the other agents, so they are computed only
    // once, for both fleets.
    let of_all = match split {
        SiteSplit::All => of_all_sites(sites, agents, threads),
        SiteSplit::Nearest(_) => Vec::new(),
    };
    let outlook = |fleet: &Fleet<'_>| match split {
        SiteSplit::All => fleet.outlook(sites, fleet.evenly(sites, &of_all)),
        SiteSplit::Nearest(most) => fleet.outlook(sites, fleet.over_nearest(sites, most, threads)),
    };
    let unchanged = agents.iter().all(|agent| agent.change == AgentChange::Stays);
    let before = outlook(&before);
    let after = if unchanged { before.clone() } else { outlook(&after) };
    Ok(Comparison { before, after })
}

#[cfg(test)]
mod tests;
