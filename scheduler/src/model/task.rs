//! What is said of a task in one word: its state, and why it ended otherwise than done.

words!(
    TaskState {
        /// It waits to be measured.
        Submitted = "submitted",
        /// Landmarks measure its site.
        Measuring = "measuring",
        /// It waits for an agent to be chosen.
        Located = "located",
        /// It waits at an agent.
        Assigned = "assigned",
        /// An agent crawls its site.
        Leased = "leased",
        /// It was crawled.
        Done = "done",
        Failed = "failed",
        Cancelled = "cancelled",
    }
);

words!(
    /// Why a task failed or was cancelled.
    ReasonKind {
        /// The guard refused its address.
        Guard = "guard",
        /// robots.txt forbids it, or could not be had.
        Robots = "robots",
        /// Requests to it failed without end.
        Breaker = "breaker",
        /// It is forbidden, and its agent does not say by whom.
        Blocked = "blocked",
        /// Its name leads to no address.
        NameNotFound = "name-not-found",
        /// Its address refused the connection.
        ConnectionRefused = "connection-refused",
        /// No connection came about for another cause.
        NoConnection = "no-connection",
        /// It did not answer in time.
        TimedOut = "timed-out",
        /// TLS failed.
        Tls = "tls",
        /// Its start page leads out of the site, or in a circle.
        Redirect = "redirect",
        /// It answered with a status from 400 to 499.
        Status4xx = "status-4xx",
        /// It answered with a status from 500 on.
        Status5xx = "status-5xx",
        /// Its answer was no HTTP, or broke off.
        BrokenAnswer = "broken-answer",
        /// It gave no page, and its agent does not say why.
        Unreachable = "unreachable",
        /// Its crawls crashed, or lost their agents, too often.
        Poison = "poison",
        /// No agent meets what its batch asks of them.
        NoAgent = "no-agent",
        /// The operator cancelled it.
        Cancelled = "cancelled",
        /// It is the same site as another of the batch.
        SameSite = "same-site",
        /// It was not told apart.
        Other = "other",
    }
);

impl ReasonKind {
    /// What it says of a site, for people.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Guard => "the guard refused the address",
            Self::Robots => "robots.txt forbids it, or could not be had",
            Self::Breaker => "circuit open: requests failed without end",
            Self::Blocked => "forbidden",
            Self::NameNotFound => "the name leads to no address",
            Self::ConnectionRefused => "the connection was refused",
            Self::NoConnection => "no connection",
            Self::TimedOut => "no answer in time",
            Self::Tls => "TLS failed",
            Self::Redirect => "the start page leads elsewhere",
            Self::Status4xx => "answered with 4xx",
            Self::Status5xx => "answered with 5xx",
            Self::BrokenAnswer => "the answer was broken",
            Self::Unreachable => "gave no page",
            Self::Poison => "crashed too often",
            Self::NoAgent => "no agent may crawl it",
            Self::Cancelled => "cancelled by the operator",
            Self::SameSite => "the same site as another",
            Self::Other => "for another reason",
        }
    }
}
