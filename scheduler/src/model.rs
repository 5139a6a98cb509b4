//! Basic types of the whole project: identifiers, round trips and states. They use no IO and no
//! clock.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use cause::{
    ChoiceCause, ChoiceReasons, Fallback, FallbackCause, FormerAgent, Gain, Parting, Stage, Unmeasured,
    UnmeasuredCause, UnmetCause, WaitCause,
};
pub use outcome::{Blocker, Budget, CrawlEnding, OutcomeKind};
pub use policy::{CrawlPolicy, MAX_HOSTS, OutOfBounds, PolicyDifference, PolicyRequest};
pub use reason::ReasonKind;
pub use report_group::ReportGroup;
pub use task::TaskState;

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

            /// The word for this value in the store, on the command line and in reports. It never
            /// changes.
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
pub(crate) mod contact;
pub(crate) mod duration;
pub(crate) mod naming;
pub(crate) mod nearest;
mod outcome;
pub(crate) mod parallel;
mod policy;
mod reason;
mod report_group;
pub mod seed;
pub(crate) mod service;
pub(crate) mod site_list;
pub(crate) mod site_name;
pub(crate) mod size;
pub mod stats;
mod task;

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
    /// The fencing token of a lease. It rises with each grant of a task.
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
    /// The number of a role's term. It rises whenever a scheduler becomes leader.
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

/// The strategy that chooses an agent for a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Strategy {
    /// Any agent, with equal probability.
    Random,
    /// The agent with the highest hash of its number and the site's name (rendezvous hashing). If
    /// the fleet changes, few sites get another agent.
    Hash,
    /// The first agent with a free slot among the three whose keys have the smallest XOR distances
    /// to the site's key, as in distributed hash tables.
    Kademlia,
    /// An agent chosen by the public suffix of the site's name. All sites of a suffix go to one
    /// agent, which is in the suffix's country if possible.
    Domain,
    /// The geographically nearest agent.
    Geographic,
    /// The agent whose address has the longest common prefix with the site's address.
    Prefix,
    /// One of the K nearest agents at random (section 2.2.3 of the paper that the README cites).
    GnpTop(TopK),
    /// One of the nearest agents, drawn with weights for free slots and nearness.
    GnpBalanced,
    /// The nearest agent by measurement, after the few agents that may be nearest measured the
    /// site.
    GnpConfirmed,
    /// The agent that is predicted to end the crawl first, including the wait for a slot.
    EarliestFinish,
}

/// The number of nearest agents among which `gnp-topK` draws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TopK(u8);

impl TopK {
    /// Maximum K. A draw among more agents would include distant agents.
    pub const MOST: u8 = 99;

    /// `None` for 0 and above [`Self::MOST`].
    pub const fn new(k: u8) -> Option<Self> {
        if 1 <= k && k <= Self::MOST { Some(Self(k)) } else { None }
    }

    pub const fn get(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownStrategy {
    #[error("unknown strategy '{name}': the strategies are {known}{question}")]
    Name {
        name: String,
        known: String,
        /// A question that suggests similar names of strategies; empty if no name is similar.
        question: String,
    },
    #[error("'{name}' is not gnp-topK: K must be a whole number from 1 to {}", TopK::MOST)]
    TopK { name: String },
}

/// The name of [`Strategy::GnpTop`] without the number K at its end.
const GNP_TOP: &str = "gnp-top";

impl Strategy {
    pub const GNP_TOP1: Self = Self::GnpTop(TopK(1));
    pub const GNP_TOP3: Self = Self::GnpTop(TopK(3));

    /// The strategies shown in lists. Of `gnp-topK`, only `gnp-top1` and `gnp-top3` are listed.
    pub const ALL: &'static [Self] = &[
        Self::Random,
        Self::Hash,
        Self::Kademlia,
        Self::Domain,
        Self::Geographic,
        Self::Prefix,
        Self::GNP_TOP1,
        Self::GNP_TOP3,
        Self::GnpBalanced,
        Self::GnpConfirmed,
        Self::EarliestFinish,
    ];

    /// Every strategy, including `gnp-topK` for every K.
    pub fn each() -> impl Iterator<Item = Self> {
        let named = Self::ALL.iter().copied().filter(|one| !matches!(one, Self::GnpTop(_)));
        named.chain((1..=TopK::MOST).filter_map(TopK::new).map(Self::GnpTop))
    }

    /// The whole name; `None` for [`Self::GnpTop`], whose name depends on K.
    const fn word(self) -> Option<&'static str> {
        match self {
            Self::Random => Some("random"),
            Self::Hash => Some("hash"),
            Self::Kademlia => Some("kademlia"),
            Self::Domain => Some("domain"),
            Self::Geographic => Some("geographic"),
            Self::Prefix => Some("prefix"),
            Self::GnpTop(_) => None,
            Self::GnpBalanced => Some("gnp-balanced"),
            Self::GnpConfirmed => Some("gnp-confirmed"),
            Self::EarliestFinish => Some("earliest-finish"),
        }
    }

    /// Whether the strategy uses round trips between agents and sites.
    pub const fn needs_distance(self) -> bool {
        match self {
            Self::Random | Self::Hash | Self::Kademlia | Self::Domain | Self::Geographic | Self::Prefix => false,
            Self::GnpTop(_) | Self::GnpBalanced | Self::GnpConfirmed | Self::EarliestFinish => true,
        }
    }

    /// Whether the strategy gives some sites to an agent that may be nearer than the best known
    /// agent. The strategies in the paper that the README cites do not explore.
    pub const fn explores(self) -> bool {
        matches!(self, Self::GnpBalanced | Self::EarliestFinish)
    }

    /// Whether the strategy chooses the agent that it considers nearest, apart from load. Other
    /// strategies draw at random or ignore distance.
    pub const fn prefers_the_nearest(self) -> bool {
        matches!(self, Self::GNP_TOP1 | Self::GnpBalanced | Self::GnpConfirmed | Self::EarliestFinish)
    }

    /// Whether the strategy ranks agents by their loads too.
    pub const fn needs_load(self) -> bool {
        matches!(self, Self::GnpBalanced | Self::EarliestFinish)
    }

    /// Whether the strategy confirms only sites with uncertain distances, while their tasks wait
    /// for a slot. Other strategies confirm every site or none.
    pub const fn confirms_the_unsure(self) -> bool {
        matches!(self, Self::GnpBalanced | Self::EarliestFinish)
    }

    /// Whether sites must be measured before an agent is chosen, because the strategy needs their
    /// distances, or their addresses as resolved by probers.
    pub const fn needs_measuring(self) -> bool {
        self.needs_distance() || matches!(self, Self::Geographic | Self::Prefix)
    }
}

impl Default for Strategy {
    fn default() -> Self {
        Self::GNP_TOP3
    }
}

/// Writes the name that the store, the command line and reports use. The name never changes.
impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GnpTop(k) => f.pad(&format!("{GNP_TOP}{}", k.0)),
            other => f.pad(other.word().unwrap_or_default()),
        }
    }
}

impl FromStr for Strategy {
    type Err = UnknownStrategy;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        if let Some(k) = name.strip_prefix(GNP_TOP) {
            // `gnp-top03` and `gnp-top+3` are refused, so that each strategy has only one name.
            let plain = !k.starts_with('0') && k.bytes().all(|byte| byte.is_ascii_digit());
            let top = k.parse().ok().filter(|_| plain).and_then(TopK::new).map(Self::GnpTop);
            return top.ok_or_else(|| UnknownStrategy::TopK { name: name.to_owned() });
        }
        Self::ALL.iter().copied().find(|strategy| strategy.word() == Some(name)).ok_or_else(|| {
            let known: Vec<String> = Self::ALL.iter().map(Self::to_string).collect();
            let (listed, near) = (known.join(", "), nearest::nearest(name, known));
            UnknownStrategy::Name { name: name.to_owned(), known: listed, question: nearest::question(near) }
        })
    }
}

impl From<Strategy> for String {
    fn from(strategy: Strategy) -> Self {
        strategy.to_string()
    }
}

impl TryFrom<String> for Strategy {
    type Error = UnknownStrategy;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        name.parse()
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

    #[test]
    fn strategies_are_known_by_their_names() {
        for strategy in Strategy::each() {
            assert_eq!(strategy.to_string().parse(), Ok(strategy));
        }
        assert!(Strategy::ALL.iter().all(|strategy| Strategy::each().any(|one| one == *strategy)));
        assert_eq!(Strategy::each().count(), 9 + 99);
        let error = "top3".parse::<Strategy>().unwrap_err().to_string();
        assert!(
            error.starts_with("unknown strategy 'top3': the strategies are random, ") && error.contains("gnp-top3")
        );
        for name in
            ["gnp-top", "gnp-top0", "gnp-top03", "gnp-top+3", "gnp-top100", "gnp-top-1", "gnp-topK", "gnp-top3 "]
        {
            let error = name.parse::<Strategy>().unwrap_err().to_string();
            assert_eq!(error, format!("'{name}' is not gnp-topK: K must be a whole number from 1 to 99"));
        }
    }
}
