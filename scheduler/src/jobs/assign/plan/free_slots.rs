//! Predicts when the slots of an agent become free.

use std::cmp::Reverse;
use std::time::Duration;

use crate::store::assignments::available_agents::AvailableAgent;
use crate::store::assignments::loads::AgentCrawl;
use crate::strategy::schedule;

/// When each of an agent's slots becomes free, computed from the agent's crawls. A crawl without a
/// prediction is assumed to take as long as the agent's crawls usually do.
pub(super) fn frees(agent: &AvailableAgent, held: &[AgentCrawl]) -> Vec<Duration> {
    let takes = |held: &AgentCrawl| held.takes.unwrap_or(agent.pace);
    let mut under_way: Vec<Duration> =
        held.iter().filter_map(|held| Some(schedule::remaining(takes(held), held.under_way?))).collect();
    under_way.sort_unstable_by_key(|remaining| Reverse(*remaining));
    let waiting: Vec<Duration> = held.iter().filter(|held| held.under_way.is_none()).map(takes).collect();
    schedule::frees(usize::try_from(agent.capacity).unwrap_or(usize::MAX), &under_way, &waiting)
}
