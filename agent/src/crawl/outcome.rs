//! The outcome of a crawl, and the other ways in which a crawl ends.

use std::time::{Duration, SystemTime};

use super::{Budget, CrawlSnapshot, Trouble};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutcomeKind {
    /// All known paths within the limits were requested, although some requests may have failed.
    Complete,
    Truncated(Budget),
    Blocked(Blocker),
    /// The site returned no page.
    Unreachable,
}

/// What blocks the crawl of a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// The site's robots.txt, or the failure to fetch it.
    Robots,
    Guard,
    /// Too many consecutive failed requests.
    Breaker,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub kind: OutcomeKind,
    /// Number of requests that this process sent; 0 if another crawler sent them.
    pub requests: u32,
    /// Number of complete pages with status 200.
    pub pages: u32,
    /// Decoded body bytes of pages, including cut pages but excluding error responses, redirects
    /// and robots.txt.
    pub bytes: u64,
    /// Number of failed requests: those with no response, a status of 400 or above, a body that was
    /// cut off or too large, or endless redirects.
    pub errors: u32,
    /// Number of pages fetched again because the previous agent's checkpoint could not contain its
    /// whole state.
    pub refetched: u32,
    /// Number of links not followed because they lead into a trap, such as paths with repeated
    /// segments or endless calendars.
    pub trapped: u32,
    /// The names of other sites to which pages link, spelled as in site lists.
    pub hosts: Vec<String>,
    pub started_at: SystemTime,
    pub duration: Duration,
    /// The median time to first byte of requests on warm connections; absent if there were no such
    /// requests.
    pub rtt: Option<Duration>,
    /// The site's origin; absent if it was not found.
    pub origin: Option<String>,
    /// Why the site was blocked or unreachable, in one sentence. For other outcomes, the first
    /// error; empty if there was none.
    pub message: String,
    /// Why the site was unreachable; absent otherwise.
    pub trouble: Option<Trouble>,
}

/// How a call of `crawl::run` ended.
#[derive(Debug)]
pub enum CrawlEnd {
    Outcome(Outcome),
    /// The crawl was stopped before its end, and can resume from this state.
    Stopped(Option<CrawlSnapshot>),
    /// The site requires a pause of this length. After the pause the crawl can resume from this
    /// state.
    Paused(Option<CrawlSnapshot>, Duration),
    /// The scheduler permits no further crawl of the site's address, and has ended the lease.
    NotPermitted,
    /// The crawler crashed, which says nothing about the site. The text is the reason, in one
    /// sentence. The scheduler limits how often the crawls of a site may crash.
    Crashed(String),
    /// The crawl cannot continue on this agent, for a reason that is not the site's fault.
    Broken(String),
}
