//! The rest after a crawl's last request, before its lease ends.
//!
//! An address is somebody else's as soon as a lease ends, and so is the site. Without a rest, the next crawl's first request would come
//! right after this one's last, and an address would get more than its crawls' intervals allow.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Crawl;
use super::fetch::Fetcher;

/// The longest rest. Where requests are farther apart than this, one that comes sooner is nothing that a server would feel, and a slot
/// is worth more.
const LONGEST_REST: Duration = Duration::from_secs(60);

impl Crawl {
    /// Until when it rests: a request of its own might come then. `None` where it has sent none, or nobody waits for its place.
    pub(super) fn rested_at(&self) -> Option<Instant> {
        let last = self.fetcher.as_ref().map_or(self.settled_at, Fetcher::last_start);
        let rest = self.job.policy.request_interval.min(LONGEST_REST);
        last.filter(|_| self.permits.are_asked()).map(|last| last + rest)
    }
}

/// Rests; who is stopped does not wait.
pub(super) async fn rest(until: Option<Instant>, stop: &CancellationToken) {
    if let Some(until) = until {
        stop.run_until_cancelled(sleep_until(until)).await;
    }
}
