//! Identifiers, the states of tasks, and the service states of agents: whether an agent accepts
//! work, and why not. Also the macro `words`, which defines enums whose values are stored as words.

use std::fmt;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$said:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$said])* #[serde(rename = $word)] $value,)+
        }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$value,)+];

            /// The word for this value in the store, on the command line and in reports, which
            /// never changes.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)+
                }
            }

            pub fn named(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.name() == word)
            }
        }
    };
}

pub(crate) use words;

words!(
    /// The state of a task.
    TaskState {
        /// The task waits for the measurements of its site.
        Submitted = "submitted",
        /// Agents are measuring the site.
        Measuring = "measuring",
        /// The task waits until an agent is chosen.
        Located = "located",
        /// An agent is chosen, and the task waits for a slot of this agent.
        Assigned = "assigned",
        /// The agent is crawling the site.
        Leased = "leased",
        Done = "done",
        Failed = "failed",
        Cancelled = "cancelled",
    }
);

words!(
    /// A property by which a report groups its rows. The report has one row for each value, or for
    /// each combination of values of several properties.
    ReportGroup {
        Agent = "agent",
        /// The agent's city.
        City = "city",
        /// The agent's carrier.
        Carrier = "carrier",
        /// The day, in UTC.
        Day = "day",
        /// The kind of reason why sites failed.
        Reason = "reason",
        Batch = "batch",
    }
);

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(i64);

        impl $name {
            pub const fn new(raw: i64) -> Self {
                Self(raw)
            }

            pub const fn get(self) -> i64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

identifier!(
    /// Also identifies landmarks, because these are agents.
    AgentId
);
identifier!(SiteId);
identifier!(BatchId);
identifier!(
    /// A task: the crawl of a site for a batch in one round.
    TaskId
);
identifier!(
    /// One choice of an agent for a task.
    AssignmentId
);
identifier!(
    /// One connection of an agent to a scheduler.
    SessionId
);
identifier!(
    /// An order to measure a site or a beacon.
    OrderId
);
identifier!(
    /// The fencing token of a lease, which rises with each grant of the task.
    LeaseToken
);
identifier!(
    /// A history of the database: the part of its life in which no transaction was lost. A random
    /// number above 0.
    HistoryId
);
identifier!(
    /// The number of a session among its agent's sessions. Only the session with the highest
    /// number is valid.
    Incarnation
);
identifier!(
    /// A running scheduler process.
    SchedulerId
);
identifier!(
    /// The number of a role's term, which rises whenever a scheduler becomes leader.
    TermNumber
);
identifier!(
    /// The number of an embedding. Coordinates of different epochs are not comparable.
    EmbeddingEpoch
);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceState {
    Ready,
    /// The agent finishes its leases and gets no new leases.
    Draining,
    /// The agent has no leases left and gets no new leases.
    Drained,
    /// The agent gets no leases until a problem that it reported is over.
    Paused,
    Away,
    Removed,
    /// The agent accepts work, but its measurements are ignored.
    Quarantined,
    NeverConnected,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct ServiceFacts {
    pub removed: bool,
    pub draining: bool,
    /// Whether the agent has a lease.
    pub leased: bool,
    /// Whether the agent has ever connected.
    pub known: bool,
    /// Whether the agent has an active session with an open stream.
    pub connected: bool,
    pub paused: bool,
    pub quarantined: bool,
}

impl ServiceFacts {
    /// If several states apply, states caused by the operator have priority, then states that
    /// prevent work.
    pub const fn state(self) -> ServiceState {
        match self {
            Self { removed: true, .. } => ServiceState::Removed,
            Self { draining: true, leased: false, .. } => ServiceState::Drained,
            Self { draining: true, .. } => ServiceState::Draining,
            Self { known: false, .. } => ServiceState::NeverConnected,
            Self { connected: false, .. } => ServiceState::Away,
            Self { paused: true, .. } => ServiceState::Paused,
            Self { quarantined: true, .. } => ServiceState::Quarantined,
            _ => ServiceState::Ready,
        }
    }
}
