//! How a crawl ended, and the words for it in the store.

use crate::model::ReasonKind;

/// How a crawl ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Everything was fetched.
    Complete,
    /// A budget cut it.
    Truncated(Budget),
    /// The site is forbidden, by whom its agent says.
    Blocked(Option<Blocker>),
    /// The site gave no page, for the reason that its agent says.
    Unreachable(Option<ReasonKind>),
}

/// Who forbids a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocker {
    /// Its robots.txt.
    Robots,
    /// The agent's guard.
    Guard,
    /// Requests that failed without end: a person has to reopen the site (`super::alarms`).
    Breaker,
}

/// The budget that cut a crawl.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// Pages.
    Pages,
    /// Bytes.
    Bytes,
    /// Time.
    Duration,
    /// Links from the start page.
    Depth,
}

impl Ending {
    /// Why the task fails; `None` when it is done.
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

    /// The word in the store and in reports.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Truncated(_) => "truncated",
            Self::Blocked(_) => "blocked",
            Self::Unreachable(_) => "unreachable",
        }
    }

    pub(super) const fn budget(self) -> Option<&'static str> {
        match self {
            Self::Truncated(Budget::Pages) => Some("pages"),
            Self::Truncated(Budget::Bytes) => Some("bytes"),
            Self::Truncated(Budget::Duration) => Some("duration"),
            Self::Truncated(Budget::Depth) => Some("depth"),
            Self::Complete | Self::Blocked(_) | Self::Unreachable(_) => None,
        }
    }
}
