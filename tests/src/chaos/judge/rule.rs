//! Lists the rules that a run must keep, with their names in JSON, and defines violations of rules.

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Every acknowledged site has a task.
    Lost,
    /// At most one outcome of a task was accepted.
    DoubleCompleted,
    /// No outcome was accepted with an old token, or after its task's end.
    StaleAccepted,
    /// If two agents crawl one site, their crawls overlap by at most one request.
    Overlap,
    /// Tokens rise by one per grant, and every grant that an agent received is recorded.
    Tokens,
    /// At most one lease of a site was active at a time.
    OneLease,
    /// Incarnations rise, and no session got a lease after its agent had opened a newer session.
    Incarnations,
    /// A session ends before its leases expire.
    SessionFirst,
    /// After a term has started, earlier terms of the same role write no event.
    Terms,
    /// The database contains every outcome that a scheduler acknowledged.
    Acknowledged,
    /// After the faults, every task that had lost its lease was granted again within three session
    /// lifetimes.
    Orphans,
    /// Every task ended after the faults.
    Unfinished,
}

impl Rule {
    pub const ALL: [Self; 12] = [
        Self::Lost,
        Self::DoubleCompleted,
        Self::StaleAccepted,
        Self::Overlap,
        Self::Tokens,
        Self::OneLease,
        Self::Incarnations,
        Self::SessionFirst,
        Self::Terms,
        Self::Acknowledged,
        Self::Orphans,
        Self::Unfinished,
    ];

    /// The name of the rule in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::DoubleCompleted => "double_completed",
            Self::StaleAccepted => "stale_accepted",
            Self::Overlap => "overlap_violations",
            Self::Tokens => "token_gaps",
            Self::OneLease => "sites_leased_twice",
            Self::Incarnations => "old_incarnations",
            Self::SessionFirst => "leases_before_sessions",
            Self::Terms => "old_terms",
            Self::Acknowledged => "acknowledged_unrecorded",
            Self::Orphans => "orphans_late",
            Self::Unfinished => "unfinished",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub rule: Rule,
    /// The affected task; `None` if there is none.
    pub task: Option<i64>,
    pub message: String,
}
