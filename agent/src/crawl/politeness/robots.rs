//! Fetches a site's robots.txt before any page, and decides from its rules which paths may be
//! requested (RFC 9309).
//!
//! A missing file allows everything. An unavailable file (5xx, 429, no response) forbids
//! everything, because its rules are unknown. Redirects are followed, even to other hosts. As for
//! all requests, the guard vets the addresses, and `crawl::politeness` decides when the requests
//! start. All crawls of the agent use the rules for a day; a crawl that lasts longer fetches them
//! again.

pub use cache::RobotsCache;
pub(in crate::crawl) use fetch::RulesError;
pub(in crate::crawl) use rules::{RobotsRules, rules_of};

mod cache;
mod fetch;
pub(in crate::crawl) mod page_directives;
mod parser;
#[cfg(test)]
mod published;
mod rules;
