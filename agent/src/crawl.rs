//! Crawls one site politely for one lease, and returns an [`Outcome`].
//!
//! The crawl is breadth first from `/`, inside one origin. `crawl::walk` visits the pages. Only
//! `crawl::fetch` sends requests. `crawl::politeness` decides when the next request may start, and
//! which paths robots.txt allows. `crawl::frontier` picks the next path. `crawl::policy_and_budget`
//! limits the crawl. Requests are sequential: the agent never sends two requests to a site at the
//! same time.
//!
//! A crawl that skipped paths because its budget was spent counts as truncated, never as complete.
//! A crawl that fetched no page counts as neither complete nor truncated.

pub use external::ExternalCrawler;
pub use fetch::failure_cause::Trouble;
pub use fetch::site_address::{AddressPermits, NotPermitted, PermitSource};
pub use frontier::checkpoint::Checkpoint;
pub use frontier::crawl_storage::{CrawlProgress, CrawlSnapshot, CrawlStorage, SnapshotSink};
pub use frontier::known_paths::{SeenPaths, fingerprint};
pub use outcome::{Blocker, CrawlEnd, Outcome, OutcomeKind};
pub use policy_and_budget::{Budget, Job, LeasedCrawl, MAX_HOSTS, Policy};
pub use politeness::RateState;
pub use politeness::path_filter::PathFilter;
pub use politeness::request_interval::SchedulerSilence;
pub use politeness::robots_rules::RobotsCache;
pub use site_crawl::run;

mod external;
mod fetch;
mod frontier;
pub(crate) mod html;
mod outcome;
mod policy_and_budget;
mod politeness;
mod site_crawl;
#[cfg(test)]
mod tests;
mod walk;
