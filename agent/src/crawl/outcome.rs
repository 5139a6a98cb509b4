//! How a crawl ends.

use std::time::{Duration, SystemTime};

use super::{Budget, Standing, Trouble};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Everything within reach was fetched, though some of it may have answered with an error.
    Complete,
    Truncated(Budget),
    Blocked(Blocker),
    /// The site gave not a single page.
    Unreachable,
}

/// Who forbids a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// Its robots.txt, or that it could not be had.
    Robots,
    Guard,
    /// Requests that failed without end.
    Breaker,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub kind: Kind,
    /// Pages received whole, with status 200.
    pub pages: u32,
    /// Body bytes of pages received, after decoding, cut pages included. Bodies of errors and redirects, and robots.txt,
    /// are not pages.
    pub bytes: u64,
    /// Requests that failed: no answer, a status of 400 and above, a body that broke off or was too large, redirects
    /// without end.
    pub errors: u32,
    /// Pages fetched once more, because the agent that had fetched them could not hand everything over.
    pub refetched: u32,
    /// Links left out because they lead into a trap: paths that repeat themselves, calendars without end.
    pub trapped: u32,
    pub started_at: SystemTime,
    pub duration: Duration,
    /// The median time to first byte on warm connections; absent when there was none.
    pub rtt: Option<Duration>,
    /// The origin that was crawled; absent when none was found.
    pub origin: Option<String>,
    /// One sentence: why it was blocked or unreachable, else the first error; empty when all went well.
    pub message: String,
    /// Why it was unreachable; absent when it was not.
    pub trouble: Option<Trouble>,
}

/// How a crawl ended, or did not.
#[derive(Debug)]
pub enum Ended {
    /// It did.
    Outcome(Outcome),
    /// It was stopped before, and may be gone on with from here.
    Stopped(Option<Standing>),
    /// The site asks to be left alone for so long, and may be gone on with from here then.
    Paused(Option<Standing>, Duration),
    /// Its address bears no further crawl: its lease has ended.
    NotPermitted,
    /// It cannot go on here, for this reason, which is none of the site's.
    Broken(String),
}
