//! The ways in which a crawl can end, and the words stored for them.

use super::ReasonKind;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrawlEnding {
    /// All pages were fetched.
    Complete,
    /// A budget was used up.
    Truncated(Budget),
    /// The agent must not crawl the site. The blocker is `None` if the agent did not report it.
    Blocked(Option<Blocker>),
    /// No page of the site could be fetched. The reason is `None` if the agent did not report it.
    Unreachable(Option<ReasonKind>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    Robots,
    Guard,
    /// Too many requests failed in a row. An operator has to reopen the site
    /// (`crate::store::sites::open_circuits`).
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
    /// The kind of a [`CrawlEnding`].
    OutcomeKind {
        Complete = "complete",
        Truncated = "truncated",
        Blocked = "blocked",
        Unreachable = "unreachable",
    }
);

impl CrawlEnding {
    /// Why the task fails; `None` if the task is done.
    pub const fn reason(self) -> Option<ReasonKind> {
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

    pub const fn kind(self) -> OutcomeKind {
        match self {
            Self::Complete => OutcomeKind::Complete,
            Self::Truncated(_) => OutcomeKind::Truncated,
            Self::Blocked(_) => OutcomeKind::Blocked,
            Self::Unreachable(_) => OutcomeKind::Unreachable,
        }
    }

    pub const fn budget(self) -> Option<Budget> {
        match self {
            Self::Truncated(budget) => Some(budget),
            Self::Complete | Self::Blocked(_) | Self::Unreachable(_) => None,
        }
    }
}
