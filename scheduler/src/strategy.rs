//! Strategies choose an agent for a task. [`choose()`] applies a strategy; the folder also compares
//! agents' queues, plans crawls, and learns from past crawls.

mod candidate;
mod choose;
pub(crate) mod explain;
#[cfg(test)]
mod fixture;
pub mod learned;
pub mod load;
pub(crate) mod rules;
pub mod schedule;
pub mod site_facts;
pub mod uncertainty;

pub use candidate::{AgentLocation, Candidate, Spread, with_speeds};
pub use choose::{choose, choose_during_alarm};
pub use learned::explore::explored;
pub use load::LoadLevel;
pub use rules::anycast::choose_among_near;
pub use rules::choice::Choice;
pub use rules::next_candidate::{RecordedCandidate, RecordedChoice, choose_next};
pub use schedule::crawl_duration::{Crawl, PreparedWork, Speed, Work, crawl_weight, speeds};
pub use schedule::usual_size::usual_size;
pub use site_facts::Site;

#[cfg(test)]
mod tests;
