//! Counts the fleet's agents, slots and leases.

use std::collections::BTreeMap;

use super::facts::AgentStatus;
use crate::model::service::ServiceState;

/// The fleet in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetSummary {
    /// Number of agents in each state.
    pub agents: BTreeMap<ServiceState, u32>,
    /// The slots of the connected agents.
    pub slots: u64,
    pub leases: u64,
}

impl FleetSummary {
    pub fn of(agents: &[AgentStatus]) -> Self {
        let mut by_state: BTreeMap<ServiceState, u32> = BTreeMap::new();
        for agent in agents {
            *by_state.entry(agent.service).or_default() += 1;
        }
        let connected = agents.iter().filter(|agent| agent.connected);
        Self {
            agents: by_state,
            slots: connected.map(|agent| u64::from(agent.slots)).sum(),
            leases: agents.iter().map(|agent| u64::from(agent.leases)).sum(),
        }
    }
}
