//! Describes the agents of a plan, and computes the defaults of a planned agent.

use crate::strategy::{Crawl, Speed};

/// What happens to an agent in the planned change of the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentChange {
    /// The agent is in the fleet before and after the change.
    Stays,
    /// The agent is added.
    Comes,
    /// The agent is removed.
    Leaves,
}

/// An agent with a coordinate.
#[derive(Debug, Clone, PartialEq)]
pub struct Agent {
    pub name: String,
    pub city: String,
    pub carrier: String,
    /// One component per dimension, then the height; all in milliseconds.
    pub coordinate: Vec<f64>,
    /// Number of sites that the agent crawls concurrently, at least 1.
    pub slots: u32,
    pub speed: Speed,
    pub change: AgentChange,
}

/// The coordinate of an agent placed at a site: the site's coordinate with the median height of the
/// agents. The site's own height is the delay of the site's own access path, which an agent beside
/// the site does not share.
pub fn beside(site: &[f64], agents: &[Agent]) -> Vec<f64> {
    let mut heights: Vec<f64> = agents
        .iter()
        .filter(|agent| agent.change != AgentChange::Comes)
        .filter_map(|agent| agent.coordinate.last().copied())
        .collect();
    heights.sort_unstable_by(f64::total_cmp);
    let height = heights.get(heights.len() / 2).copied().unwrap_or_default();
    let position = site.split_last().map_or(&[][..], |(_, position)| position);
    position.iter().copied().chain([height]).collect()
}

/// The default number of slots of a planned agent: the median over all agents.
pub fn usual_slots(agents: &[Agent]) -> u32 {
    let mut slots: Vec<u32> = agents.iter().map(|agent| agent.slots).collect();
    slots.sort_unstable();
    slots.get(slots.len() / 2).copied().unwrap_or(1)
}

/// The default speed of a planned agent, learned from the crawls of all existing agents together.
/// The argument has one item per agent.
pub fn usual_speed(crawls: impl IntoIterator<Item = Vec<Crawl>>) -> Speed {
    let all: Vec<Crawl> = crawls.into_iter().flatten().collect();
    Speed::default().learned(&all)
}
