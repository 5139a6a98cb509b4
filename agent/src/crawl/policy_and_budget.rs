//! What to crawl, the limits of a crawl, the ledger that counts what the crawl has spent, and the
//! stopwatch that decides when its time is spent.
//!
//! The outcome reports the ledger's counts, so a crawl that ends in the middle of a page still
//! reports the bytes it received. The caller reads the clock and enforces the time limit.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::fetch::failure_cause::Trouble;
use super::fetch::site_address::AddressPermits;
use super::frontier::CrawlTotals;
use super::politeness::path_filter::PathFilter;
use crate::disk::crawl_files::LeaseKey;
use crate::machine::clock;
use crate::net::origin::Origin;
use crate::net::request_context::RequestContext;

#[derive(Debug, Clone)]
pub struct Job {
    /// The site as submitted.
    pub name: String,
    /// The site's origin. If unknown, the crawl finds it first.
    pub origin: Option<Origin>,
    pub policy: Policy,
    /// Number of pages that the site's last crawl found, if known.
    pub last_pages: Option<u32>,
}

/// The crawl of a lease.
#[derive(Debug)]
pub struct LeasedCrawl {
    pub(crate) key: LeaseKey,
    pub(crate) job: Job,
    /// The checkpoint from which the crawl can resume; empty if there is none. External crawlers
    /// cannot resume.
    pub(crate) checkpoint: Vec<u8>,
    /// Whether the policy requires pages to be stored.
    pub(crate) stores_pages: bool,
    pub(crate) permits: AddressPermits,
    pub(crate) context: Arc<RequestContext>,
    /// Cancelled when the scheduler wants the lease back for another agent.
    pub(crate) preempted: CancellationToken,
}

/// The largest value of [`Policy::max_hosts`].
pub const MAX_HOSTS: u32 = 1_000;

/// The limits of a crawl.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    pub max_pages: u32,
    /// Maximum body bytes. The body that exceeds this limit is cut.
    pub max_bytes: u64,
    /// Maximum number of links between the start page and a page; 0 means only the start page.
    pub max_depth: u32,
    /// Maximum duration of the crawl. A resumed crawl also counts the time before it was stopped.
    pub max_duration: Duration,
    /// Minimum time between the starts of two requests to a small site, or to a site of unknown
    /// size. robots.txt may require more.
    pub request_interval: Duration,
    /// The minimum time between requests to a large site. If `shortest_interval` is longer than
    /// `request_interval`, `request_interval` applies instead.
    pub shortest_interval: Duration,
    /// The outcome names at most this many of the other sites to which pages link.
    pub max_hosts: u32,
    /// Whether to read the sitemaps that robots.txt names.
    pub sitemaps: bool,
    pub paths: PathFilter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    Pages,
    /// The crawl reached [`Policy::max_bytes`], or a page reached the size limit of a single page.
    Bytes,
    Depth,
    Duration,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) answered: bool,
    /// Number of complete pages with status 200.
    pub(super) pages: u32,
    /// Decoded body bytes of pages.
    pub(super) bytes: u64,
    /// Body bytes of responses that are not pages, which count against the budget but are not in
    /// the outcome.
    pub(super) unwanted_bytes: u64,
    pub(super) errors: u32,
    /// The cause of the first error, and its message.
    pub(super) first_error: Option<(Trouble, String)>,
    pub(super) last_error: Option<String>,
    /// Whether any page was cut at the size limit of a single page.
    pub(super) page_cut: bool,
}

impl Ledger {
    /// The ledger of a resumed crawl, which begins with the totals from before the crawl was
    /// stopped.
    pub(super) fn after(totals: &CrawlTotals) -> Self {
        Self {
            pages: totals.pages,
            bytes: totals.bytes,
            unwanted_bytes: totals.unwanted_bytes,
            errors: totals.errors,
            page_cut: totals.page_cut,
            answered: totals.pages > 0,
            ..Self::default()
        }
    }

    pub(super) const fn write_to(&self, totals: &mut CrawlTotals) {
        totals.pages = self.pages;
        totals.bytes = self.bytes;
        totals.unwanted_bytes = self.unwanted_bytes;
        totals.errors = self.errors;
        totals.page_cut = self.page_cut;
    }

    pub(super) const fn receive(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(super) const fn receive_unwanted(&mut self, bytes: u64) {
        self.unwanted_bytes = self.unwanted_bytes.saturating_add(bytes);
    }

    pub(super) const fn complete_page(&mut self) {
        self.pages = self.pages.saturating_add(1);
    }

    pub(super) fn fail(&mut self, trouble: Trouble, sentence: impl FnOnce() -> String) {
        self.errors = self.errors.saturating_add(1);
        let sentence = sentence();
        self.first_error.get_or_insert_with(|| (trouble, sentence.clone()));
        self.last_error = Some(sentence);
    }

    pub(super) const fn exhausted(&self, policy: &Policy) -> Option<Budget> {
        if self.pages >= policy.max_pages {
            return Some(Budget::Pages);
        }
        if self.all_bytes() >= policy.max_bytes { Some(Budget::Bytes) } else { None }
    }

    /// Whether the crawl must cut the current body.
    pub(super) const fn overdrawn(&self, policy: &Policy) -> bool {
        self.all_bytes() > policy.max_bytes
    }

    const fn all_bytes(&self) -> u64 {
        self.bytes.saturating_add(self.unwanted_bytes)
    }
}

/// Maximum duration, which the clock can represent.
const YEAR: Duration = Duration::from_secs(365 * 86_400);

/// Measures how long a crawl has taken, including the time before it was stopped and resumed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stopwatch {
    began: Instant,
    before: Duration,
    resumed_at: SystemTime,
}

impl Stopwatch {
    /// Starts the stopwatch. `before` is how long the crawl had taken when it was stopped; zero for
    /// a new crawl.
    pub(super) fn after(before: Duration) -> Self {
        Self { began: Instant::now(), before: before.min(YEAR), resumed_at: clock::wall() }
    }

    /// The time at which the crawl would have begun if it had never been stopped.
    pub(super) fn started_at(self) -> SystemTime {
        self.resumed_at.checked_sub(self.before).unwrap_or(self.resumed_at)
    }

    /// The time at which the crawl's time budget is spent.
    pub(super) fn deadline(self, max_duration: Duration) -> Instant {
        self.began + max_duration.min(YEAR).saturating_sub(self.before)
    }

    /// [`Stopwatch::deadline`] as wall-clock time.
    pub(super) fn deadline_at(self, max_duration: Duration) -> SystemTime {
        let started_at = self.started_at();
        started_at.checked_add(max_duration.min(YEAR)).unwrap_or(started_at)
    }

    /// Counts a pause against the crawl's time budget, even though no agent has the lease
    /// meanwhile.
    pub(super) const fn count_pause(&mut self, pause: Duration) {
        self.before = self.before.saturating_add(pause);
    }

    pub(super) fn elapsed(self) -> Duration {
        self.before.saturating_add(self.began.elapsed())
    }
}

pub(super) fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        Policy { max_pages: 2, max_bytes: 10, ..crate::crawl::tests::policy() }
    }

    #[test]
    fn an_exhausted_budget_forbids_the_next_request() {
        let mut ledger = Ledger::default();
        ledger.complete_page();
        assert_eq!(ledger.exhausted(&policy()), None);
        ledger.complete_page();
        assert_eq!(ledger.exhausted(&policy()), Some(Budget::Pages));
    }

    #[test]
    fn a_body_that_ends_at_the_byte_budget_is_not_cut() {
        let mut ledger = Ledger::default();
        ledger.receive(10);
        assert!(!ledger.overdrawn(&policy()));
        assert_eq!(ledger.exhausted(&policy()), Some(Budget::Bytes));
        ledger.receive_unwanted(1);
        assert!(ledger.overdrawn(&policy()));
        assert_eq!(ledger.bytes, 10);
    }

    #[test]
    fn the_first_error_is_kept() {
        let mut ledger = Ledger::default();
        ledger.fail(Trouble::ServerError, || "first".to_owned());
        ledger.fail(Trouble::Redirect, || "second".to_owned());
        assert_eq!((ledger.errors, ledger.first_error), (2, Some((Trouble::ServerError, "first".to_owned()))));
        assert_eq!(ledger.last_error.as_deref(), Some("second"));
    }
}
