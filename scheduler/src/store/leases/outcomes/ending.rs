//! Endings of crawls, and the words with which they are stored.

use crate::model::{ReasonKind, words};

/// How a crawl ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrawlEnding {
    /// All pages were fetched.
    Complete,
    /// A budget was used up.
    Truncated(Budget),
    /// The agent must not crawl the site. The blocker is `None` if the agent did not report it.
    Blocked(Option<Blocker>),
    /// The site gave no page. The reason is `None` if the agent did not report it.
    Unreachable(Option<ReasonKind>),
}

/// Why an agent must not crawl a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// The site's robots.txt.
    Robots,
    /// The agent's guard.
    Guard,
    /// Too many requests failed in a row. An operator has to reopen the site
    /// (`crate::store::sites::alarms`).
    Breaker,
}

words!(
    /// The budget that ended a crawl.
    Budget {
        Pages = "pages",
        Bytes = "bytes",
        Duration = "duration",
        /// Depth in links from the start page.
        Depth = "depth",
    }
);

words!(
    /// How a crawl ended, as one word.
    OutcomeKind {
        /// All pages were fetched.
        Complete = "complete",
        /// A budget was used up.
        Truncated = "truncated",
        /// The agent must not crawl the site.
        Blocked = "blocked",
        /// The site gave no page.
        Unreachable = "unreachable",
    }
);

impl CrawlEnding {
    /// Why the task fails; `None` if the task is done.
    pub(super) const fn reason(self) -> Option<ReasonKind> {
        match self {
            Self::Complete | Self::Truncated(_) => None,
            Self::Blocked(Some(Blocker::Robots)) => Some(ReasonKind::Robots),
            Self::Blocked(Some(Blocker::Guard)) => Some(ReasonKind::Guard),
            Self::Blocked(Some(Blocker::Breaker)) => Some(ReasonKind::Breaker),
            Self::Blocked(None) => Some(ReasonKind::Blocked),
            Self::Unreachable(Some(reason)) => Some(reason),
            Self::Unreachable(None) => Some(ReasonKind::Unreachable),
        }
    }

    /// The ending without its details.
    pub const fn kind(self) -> OutcomeKind {
        match self {
            Self::Complete => OutcomeKind::Complete,
            Self::Truncated(_) => OutcomeKind::Truncated,
            Self::Blocked(_) => OutcomeKind::Blocked,
            Self::Unreachable(_) => OutcomeKind::Unreachable,
        }
    }

    pub(super) const fn budget(self) -> Option<Budget> {
        match self {
            Self::Truncated(budget) => Some(budget),
            Self::Complete | Self::Blocked(_) | Self::Unreachable(_) => None,
        }
    }
}
