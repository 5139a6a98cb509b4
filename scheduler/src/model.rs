//! Basic types of the whole project: identifiers, round trips and states. The types use no IO and
//! no clock.

pub use durations_and_sizes::{Rtt, RttOutOfRange};
pub(crate) use identifiers_and_states::words;
pub use identifiers_and_states::{
    AgentId, AssignmentId, BatchId, EmbeddingEpoch, HistoryId, Incarnation, LeaseToken, OrderId, ReportGroup,
    SchedulerId, ServiceFacts, ServiceState, SessionId, SiteId, TaskId, TaskState, TermNumber,
};
pub use outcome::{Blocker, Budget, CrawlEnding, OutcomeKind, ReasonKind};
pub use policy::{CrawlPolicy, MAX_HOSTS, OutOfBounds, PolicyDifference, PolicyRequest};
pub use strategy::{Strategy, TopK, UnknownStrategy};
pub use wait_and_choice_causes::{
    ChoiceCause, ChoiceReasons, Fallback, FallbackCause, FormerAgent, Gain, Parting, Stage, Unmeasured,
    UnmeasuredCause, UnmetCause, WaitCause,
};

pub(crate) mod constraints;
pub(crate) mod contact_url;
pub(crate) mod durations_and_sizes;
pub mod geo;
mod identifiers_and_states;
pub(crate) mod naming;
mod outcome;
pub(crate) mod parallel;
mod policy;
pub mod quota_and_address_budget;
pub mod seed;
pub(crate) mod similar_names;
pub(crate) mod site_list;
pub(crate) mod site_name;
pub mod stats;
mod strategy;
mod wait_and_choice_causes;
