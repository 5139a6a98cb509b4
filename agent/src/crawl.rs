//! Crawls one site politely for one lease, and returns an [`Outcome`].
//!
//! The crawl is breadth first from `/`, inside one origin. `crawl::walk` visits the pages. Only
//! `crawl::fetch` sends requests. `crawl::politeness` decides when the next request may start, and
//! its module `robots` decides which paths are allowed. `crawl::frontier` picks the next path.
//! `crawl::budget` limits the crawl. Requests are sequential: the agent never sends two requests to
//! a site at the same time.
//!
//! A crawl that skipped paths because its budget was spent counts as truncated, never as complete.
//! A crawl that fetched no page counts as neither complete nor truncated.

pub use budget::{Budget, MAX_HOSTS, Policy};
pub use external::{ExternalCrawl, ExternalCrawler};
pub use fetch::failure_cause::Trouble;
pub use fetch::site_address::{AddressPermits, NotPermitted, PermitSource};
pub use frontier::checkpoint::Checkpoint;
pub use frontier::crawl_storage::CrawlStorage;
pub use frontier::fingerprint_set::{SeenPaths, fingerprint};
pub use frontier::state_writer::{CrawlProgress, CrawlSnapshot, SnapshotSink};
pub use job::Job;
pub use outcome::{Blocker, CrawlEnd, Outcome, OutcomeKind};
pub use politeness::RateState;
pub use politeness::path_filter::PathFilter;
pub use politeness::robots::RobotsCache;
pub use politeness::scheduler_silence::SchedulerSilence;
pub use site_crawl::run;

mod budget;
mod external;
mod fetch;
mod frontier;
pub(crate) mod html;
mod job;
mod lease_return;
mod outcome;
mod permitted_origin;
mod politeness;
mod site_crawl;
mod stopwatch;
mod walk;

#[cfg(test)]
mod tests;
