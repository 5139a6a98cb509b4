//! The frontier of a site: a queue of paths in breadth-first order, and the set of seen paths.
//!
//! The frontier returns each path once. The queue is a log on the disk (`log`, `queue`). Each visit
//! to a path and each sitemap adds one frame (a record) to the log. An incomplete frame is ignored,
//! so after a restart a crawl resumes at the end of its last whole frame. Memory holds only the set
//! of seen paths (`known_paths`) and the part of the queue that is being read.
//! If the queue is full, new paths are dropped. The frontier does not record the dropped paths,
//! only that the crawl is no longer complete. Links into traps (`trap`) are counted but not queued.
//!
//! Sitemap entries have depth 1 and are queued after the start page, before its links.

pub(super) use log::CrawlTotals;
pub(super) use queue::{Frontier, QueueEntry};

pub(super) mod checkpoint;
pub(super) mod crawl_storage;
pub(super) mod known_paths;
mod log;
mod queue;
#[cfg(test)]
mod tests;
mod trap;
