//! Strategies choose an agent for a task. [`choose()`] applies a strategy; the folder also compares
//! agents' queues, plans crawls, and learns from past crawls.

pub mod candidate_and_site;
pub mod crawl_duration;
pub mod distance_strategies;
pub(crate) mod explain;
mod first_and_next_choice;
#[cfg(test)]
mod fixture;
pub mod learned_distances;
pub mod load_and_pace;
mod name_and_place_strategies;
pub mod plan;
pub mod preemption;
pub mod rebalance;
pub mod similar_sites;

pub use candidate_and_site::{AgentLocation, Candidate, Site, Spread, with_speeds};
pub use crawl_duration::{Crawl, PreparedWork, Speed, Work, crawl_weight, speeds, usual_size};
pub use distance_strategies::{Choice, choose_among_near};
pub use first_and_next_choice::{RecordedCandidate, RecordedChoice, choose, choose_during_alarm, choose_next};
pub use learned_distances::explored;
pub use load_and_pace::LoadLevel;

#[cfg(test)]
mod tests;
