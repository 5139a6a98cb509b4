//! The ways in which a crawl can end, the reasons why a task ended without success, and the words
//! stored for them.

use crate::model::words;

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

words!(
    /// Why a task failed or was cancelled.
    ReasonKind {
        /// The agent's guard refused the site's address.
        Guard = "guard",
        /// robots.txt forbids the crawl or could not be fetched.
        Robots = "robots",
        /// Requests to the site failed repeatedly.
        Breaker = "breaker",
        /// The crawl is forbidden, and the agent did not report the reason.
        Blocked = "blocked",
        /// The site's name does not resolve.
        NameNotFound = "name-not-found",
        /// The site's address refused the connection.
        ConnectionRefused = "connection-refused",
        /// Connecting failed for another reason.
        NoConnection = "no-connection",
        TimedOut = "timed-out",
        Tls = "tls",
        /// The start page redirects to another site or in a loop.
        Redirect = "redirect",
        /// The site answered with a status from 400 to 499.
        Status4xx = "status-4xx",
        /// The site answered with a status of 500 or more.
        Status5xx = "status-5xx",
        /// The answer was not HTTP or was truncated.
        BrokenAnswer = "broken-answer",
        /// The site returned no page, and the agent did not report the reason.
        Unreachable = "unreachable",
        /// The crawls of the site crashed or lost their agents too often.
        Poison = "poison",
        /// No agent meets the batch's constraints.
        NoAgent = "no-agent",
        Cancelled = "cancelled",
        /// Another task of the batch covers the same site.
        SameSite = "same-site",
        Other = "other",
    }
);

impl ReasonKind {
    pub const fn words(self) -> &'static str {
        match self {
            Self::Guard => "the guard refused the address",
            Self::Robots => "robots.txt forbids it, or could not be fetched",
            Self::Breaker => "circuit open: requests kept failing",
            Self::Blocked => "forbidden",
            Self::NameNotFound => "the name has no address",
            Self::ConnectionRefused => "the connection was refused",
            Self::NoConnection => "the connection failed",
            Self::TimedOut => "no answer in time",
            Self::Tls => "TLS failed",
            Self::Redirect => "the start page redirects elsewhere",
            Self::Status4xx => "answered with 4xx",
            Self::Status5xx => "answered with 5xx",
            Self::BrokenAnswer => "the answer was invalid",
            Self::Unreachable => "returned no page",
            Self::Poison => "crashed too often",
            Self::NoAgent => "no agent may crawl it",
            Self::Cancelled => "cancelled by the operator",
            Self::SameSite => "the same site as another",
            Self::Other => "for another reason",
        }
    }
}
