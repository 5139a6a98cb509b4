//! How a crawl ends.

use std::time::{Duration, SystemTime};

use super::{Budget, CrawlSnapshot, Trouble};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeKind {
    /// Everything within the limits was fetched, though some responses may have been errors.
    Complete,
    Truncated(Budget),
    Blocked(Blocker),
    /// The site returned no page.
    Unreachable,
}

/// Who blocks the crawl of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// Its robots.txt, or the failure to fetch it.
    Robots,
    Guard,
    /// Too many consecutive failed requests.
    Breaker,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub kind: OutcomeKind,
    /// Complete pages with status 200.
    pub pages: u32,
    /// Decoded body bytes of pages, including cut pages. Bodies of errors and redirects, and
    /// robots.txt, are not pages.
    pub bytes: u64,
    /// Failed requests: no response, a status of 400 and above, a body that broke off or was too
    /// large, or endless redirects.
    pub errors: u32,
    /// Pages fetched again, because the previous agent could not hand over its whole state.
    pub refetched: u32,
    /// Links left out because they lead into a trap: self-repeating paths, endless calendars.
    pub trapped: u32,
    pub started_at: SystemTime,
    pub duration: Duration,
    /// The median time to first byte on warm connections; absent without such a request.
    pub rtt: Option<Duration>,
    /// The crawled origin; absent if none was found.
    pub origin: Option<String>,
    /// One sentence: why it was blocked or unreachable, otherwise the first error; empty without an
    /// error.
    pub message: String,
    /// Why it was unreachable; absent otherwise.
    pub trouble: Option<Trouble>,
}

/// How a call of the crawl ended.
#[derive(Debug)]
pub enum CrawlEnd {
    /// The crawl is over.
    Outcome(Outcome),
    /// It was stopped and can be resumed from this state.
    Stopped(Option<CrawlSnapshot>),
    /// The site requires a pause of this length; the crawl can then be resumed from this state.
    Paused(Option<CrawlSnapshot>, Duration),
    /// Its address permits no further crawl: its lease has ended.
    NotPermitted,
    /// It cannot continue on this agent, for this reason, which is not the site's fault.
    Broken(String),
}
