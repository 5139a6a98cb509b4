//! Compares the fleet before a planned change with the fleet after it.

use std::num::NonZeroUsize;

use super::agent::{Agent, AgentChange};
use super::error::CapacityError;
use super::load::{FleetPrediction, of_all_sites};
use super::nearest_agents::Fleet;
use super::site_split::SiteSplit;
use super::sites::Sites;

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
