//! The progress of a crawl that an agent returned before its end.

/// The progress of a preempted crawl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PartialCrawl {
    pub(super) from: usize,
    /// Number of fetched pages.
    pub(super) pages: u32,
}
