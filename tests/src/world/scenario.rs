//! The emulated agents and sites, and the links between them. A scenario is made from a
//! [`crate::world::layout::Layout`] or by [`crate::world::from_matrix`]. The scheduler does not see
//! the scenario.

use std::time::Duration;

use anyhow::ensure;

use crate::world::site_pages::WebRules;

#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: String,
    pub seed: u64,
    pub agents: Vec<AgentNode>,
    pub sites: Vec<SiteNode>,
    /// The link from each agent (row) to each agent's beacon (column).
    pub mesh: Vec<Vec<Link>>,
    /// The link from each agent (row) to each site (column).
    pub paths: Vec<Vec<Link>>,
    /// Maximum random delay of a response, in milliseconds. The delay is uniform from zero to the
    /// maximum.
    pub jitter_ms: f64,
    /// Rate of an agent's access link in bytes per second. The rate is multiplied by the agent's
    /// entry in `shapes`.
    pub agent_bytes_per_s: f64,
    /// Multipliers of `agent_bytes_per_s`, by agent index. Agents beyond the end of the list have
    /// the multiplier 1.
    pub shapes: Vec<f64>,
    pub web: WebRules,
}

#[derive(Debug, Clone)]
pub struct AgentNode {
    pub name: String,
    pub city: String,
    pub carrier: String,
    /// The country as ISO 3166-1 alpha-2 code; empty if unknown.
    pub country: String,
}

#[derive(Debug, Clone)]
pub struct SiteNode {
    pub host: String,
    pub city: String,
    pub carrier: String,
    /// The index of the machine. All sites of a machine have its address.
    pub machine: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct Link {
    pub rtt_ms: f64,
    /// The probability that a packet is lost, 0 to 1. The rootless grade loses only packets of
    /// response bodies.
    pub loss: f64,
}

impl Link {
    pub fn rtt(&self) -> Duration {
        Duration::from_secs_f64(self.rtt_ms / 1e3)
    }
}

impl Scenario {
    /// Reorders the agents. `order[n]` is the current index of the agent that gets the index `n`.
    /// Fails if `order` is not a permutation of all agents.
    pub fn ranked(mut self, order: &[usize]) -> anyhow::Result<Self> {
        let mut all = order.to_vec();
        all.sort_unstable();
        ensure!(all.iter().copied().eq(0..self.agents.len()), "{order:?} is no order of {} agents", self.agents.len());
        self.agents = order.iter().map(|&agent| self.agents[agent].clone()).collect();
        self.paths = order.iter().map(|&agent| self.paths[agent].clone()).collect();
        let row = |from: usize| order.iter().map(|&to| self.mesh[from][to]).collect();
        self.mesh = order.iter().map(|&from| row(from)).collect();
        if !self.shapes.is_empty() {
            self.shapes = order.iter().map(|&agent| self.shapes.get(agent).copied().unwrap_or(1.0)).collect();
        }
        Ok(self)
    }

    pub fn bytes_per_s(&self, agent: usize) -> f64 {
        self.agent_bytes_per_s * self.shapes.get(agent).copied().unwrap_or(1.0)
    }

    pub fn machines(&self) -> usize {
        self.sites.iter().map(|site| site.machine + 1).max().unwrap_or(0)
    }

    pub fn sites_of(&self, machine: usize) -> impl Iterator<Item = usize> {
        self.sites.iter().enumerate().filter(move |(_, site)| site.machine == machine).map(|(index, _)| index)
    }
}
