//! Basic types of the whole project: identifiers, round trips and states. The types use no IO and
//! no clock.

use std::fmt;
use std::time::Duration;

pub use cause::{
    ChoiceCause, ChoiceReasons, Fallback, FallbackCause, FormerAgent, Gain, Parting, Stage, Unmeasured,
    UnmeasuredCause, UnmetCause, WaitCause,
};
pub use failure_reason::ReasonKind;
pub use outcome::{Blocker, Budget, CrawlEnding, OutcomeKind};
pub use policy::{CrawlPolicy, MAX_HOSTS, OutOfBounds, PolicyDifference, PolicyRequest};
pub use strategy::{Strategy, TopK, UnknownStrategy};

// A macro must be declared before the modules that use it.
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

pub mod address_budget;
mod cause;
pub(crate) mod constraints;
pub(crate) mod contact_url;
pub(crate) mod duration;
mod failure_reason;
pub mod geo;
pub(crate) mod naming;
mod outcome;
pub(crate) mod parallel;
mod policy;
pub(crate) mod quota;
pub mod seed;
pub(crate) mod service;
pub(crate) mod similar_names;
pub(crate) mod site_list;
pub(crate) mod site_name;
pub(crate) mod size;
pub mod stats;
mod strategy;

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

/// A round trip, greater than 0 and at most [`Rtt::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rtt(Duration);

/// A round trip that is zero, negative, not finite, or above [`Rtt::MAX`].
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("a round trip must be above 0 and at most 10 minutes")]
pub struct RttOutOfRange;

impl Rtt {
    pub const MAX: Duration = Duration::from_secs(600);

    pub fn try_new(value: Duration) -> Result<Self, RttOutOfRange> {
        if value.is_zero() || value > Self::MAX {
            return Err(RttOutOfRange);
        }
        Ok(Self(value))
    }

    /// Converts microseconds, the unit in the store.
    pub fn try_from_micros(micros: i64) -> Result<Self, RttOutOfRange> {
        let micros = u64::try_from(micros).map_err(|_| RttOutOfRange)?;
        Self::try_new(Duration::from_micros(micros))
    }

    /// Converts milliseconds, the unit in `gnp`. Values below a microsecond become a microsecond,
    /// so that no positive value becomes zero.
    pub fn try_from_millis_f64(millis: f64) -> Result<Self, RttOutOfRange> {
        if !(millis.is_finite() && millis > 0.0) {
            return Err(RttOutOfRange);
        }
        let value = Duration::try_from_secs_f64(millis / 1e3).map_err(|_| RttOutOfRange)?;
        Self::try_new(value.max(Duration::from_micros(1)))
    }

    pub const fn as_duration(self) -> Duration {
        self.0
    }

    /// The round trip in microseconds, at least 1.
    pub fn as_micros(self) -> i64 {
        i64::try_from(self.0.as_micros().max(1)).unwrap_or(i64::MAX)
    }

    pub fn as_millis_f64(self) -> f64 {
        self.0.as_secs_f64() * 1e3
    }
}

impl fmt::Display for Rtt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} ms", self.as_millis_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_out_of_range_are_refused() {
        for millis in [0.0, -1.0, f64::NAN, f64::INFINITY, 600_001.0] {
            assert_eq!(Rtt::try_from_millis_f64(millis), Err(RttOutOfRange), "{millis}");
        }
        assert_eq!(Rtt::try_from_micros(0), Err(RttOutOfRange));
        assert_eq!(Rtt::try_from_millis_f64(12.5).map(Rtt::as_micros), Ok(12_500));
        assert_eq!(Rtt::try_from_millis_f64(1e-9).map(Rtt::as_micros), Ok(1));
    }
}
