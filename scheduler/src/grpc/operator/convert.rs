//! Converts messages of operators to domain values and back: fields of requests, filters, times and
//! counts, crawl policies and constraints, positions, and enums. Each call's own conversions stand
//! beside it.
//!
//! Requests are validated; responses are not.

use std::error::Error;
use std::time::Duration;

use chrono::{DateTime, Datelike as _, Utc};
use landfall_proto::v1;
use landfall_proto::v1::measurement_failure::Reason;

use crate::config::Metric;
use crate::model::constraints::{ConstraintsRequest, UnmetAction};
use crate::model::geo::Position;
use crate::model::{
    Blocker, Budget, FallbackCause, Gain, OutOfBounds, Parting, PolicyRequest, ReasonKind, ReportGroup, Rtt,
    ServiceState, TaskState, UnmetCause, WaitCause, naming,
};
use crate::status::AttentionKind;
use crate::store::agents::issued_tokens::State as EnrolmentState;
use crate::store::measurements::reach::Reachability;
use crate::store::measurements::results_and_failures::Cause;
use crate::store::sites::positions_and_verdicts::Source;

/// Maximum number of names in one message.
pub(in crate::grpc) const MAX_CHUNK: usize = 10_000;

/// An invalid field of a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidField {
    field: String,
    problem: String,
}

impl InvalidField {
    pub(in crate::grpc) fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { field: field.into(), problem: problem.into() }
    }

    /// Makes the error for a field of a nested message. `of` is the field that contains this
    /// message.
    pub(in crate::grpc) fn within(of: &str) -> impl FnOnce(OutOfBounds) -> Self {
        move |error| Self::new(format!("{of}.{}", error.field), error.problem)
    }

    /// Makes the error for a field whose text did not parse.
    pub(in crate::grpc) fn of<P: Error>(field: impl Into<String>) -> impl FnOnce(P) -> Self {
        move |problem| Self::new(field, problem.to_string())
    }
}

pub(in crate::grpc) fn agent_name(field: &str, text: &str) -> Result<String, InvalidField> {
    naming::agent(text).map(str::to_owned).map_err(InvalidField::of(field))
}

/// Checks that a text is one line and not empty.
pub(in crate::grpc) fn line(field: &str, text: &str) -> Result<String, InvalidField> {
    naming::one_line(text).map(str::to_owned).map_err(InvalidField::of(field))
}

/// Converts a duration and checks its bounds; `None` if the request has no duration.
pub(in crate::grpc) fn bounded(
    field: &str,
    value: Option<prost_types::Duration>,
    shortest: Duration,
    longest: Duration,
) -> Result<Option<Duration>, InvalidField> {
    let Some(value) = value else { return Ok(None) };
    match Duration::try_from(value) {
        Ok(value) if value >= shortest && value <= longest => Ok(Some(value)),
        _ => Err(InvalidField::new(field, format!("must be {shortest:?} to {longest:?}"))),
    }
}

/// The accepted cities, carriers and countries of agents; an empty list accepts all. Case is
/// ignored, also for letters outside ASCII.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::grpc) struct Places {
    cities: Vec<String>,
    carriers: Vec<String>,
    countries: Vec<String>,
}

impl Places {
    pub(in crate::grpc) fn new(cities: &[String], carriers: &[String], countries: &[String]) -> Self {
        let lower = |texts: &[String]| texts.iter().map(|text| text.to_lowercase()).collect();
        Self { cities: lower(cities), carriers: lower(carriers), countries: lower(countries) }
    }

    /// Whether all agents are accepted.
    pub(in crate::grpc) fn are_unset(&self) -> bool {
        self.cities.is_empty() && self.carriers.is_empty() && self.countries.is_empty()
    }

    pub(in crate::grpc) fn include(&self, city: &str, carrier: &str, country: &str) -> bool {
        let among = |asked: &[String], has: &str| asked.is_empty() || asked.contains(&has.to_lowercase());
        among(&self.cities, city) && among(&self.carriers, carrier) && among(&self.countries, country)
    }
}

/// The times from `since` (inclusive) to `until` (exclusive). `None` means no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::grpc) struct TimeRange {
    pub(in crate::grpc) since: Option<DateTime<Utc>>,
    pub(in crate::grpc) until: Option<DateTime<Utc>>,
}

impl TimeRange {
    /// Converts the fields `since` and `until`.
    pub(in crate::grpc) fn new(
        since: Option<prost_types::Timestamp>,
        until: Option<prost_types::Timestamp>,
    ) -> Result<Self, InvalidField> {
        let time = |field: &'static str, value: Option<prost_types::Timestamp>| {
            let valid = |value| moment(value).ok_or_else(|| InvalidField::new(field, "not a valid time"));
            value.map(valid).transpose()
        };
        let range = Self { since: time("since", since)?, until: time("until", until)? };
        match (range.since, range.until) {
            (Some(since), Some(until)) if until <= since => Err(InvalidField::new("until", "must be later than since")),
            _ => Ok(range),
        }
    }
}

pub(in crate::grpc) fn reasons(asked: &[i32]) -> Result<Vec<ReasonKind>, InvalidField> {
    let unknown = |value: &i32| InvalidField::new("reasons", format!("{value} is not a kind of reason"));
    let known = |value: &i32| ReasonKind::try_from(v1::ReasonKind::try_from(*value).ok()?).ok();
    asked.iter().map(|value| known(value).ok_or_else(|| unknown(value))).collect()
}

pub(in crate::grpc) fn duration(value: Duration) -> prost_types::Duration {
    // Only durations above 292 billion years do not fit into the message.
    prost_types::Duration::try_from(value).unwrap_or(prost_types::Duration { seconds: i64::MAX, nanos: 0 })
}

/// Converts a duration of the protocol; `None` if it is absent or negative.
pub(in crate::grpc) fn plain(value: Option<prost_types::Duration>) -> Option<Duration> {
    value.and_then(|value| Duration::try_from(value).ok())
}

/// Converts a count to 32 bits, the type that most messages use.
pub(in crate::grpc) fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}

/// Converts a count that may exceed 32 bits.
pub(in crate::grpc) fn whole(of: usize) -> u64 {
    u64::try_from(of).unwrap_or(u64::MAX)
}

pub(in crate::grpc) fn rtt(value: Option<Rtt>) -> Option<prost_types::Duration> {
    value.map(|value| duration(value.as_duration()))
}

pub(in crate::grpc) fn timestamp(value: DateTime<Utc>) -> prost_types::Timestamp {
    let nanos = i32::try_from(value.timestamp_subsec_nanos()).unwrap_or_default();
    prost_types::Timestamp { seconds: value.timestamp(), nanos }
}

/// Converts a time of the protocol; `None` if it is out of range or before the year 0. Postgres
/// refuses times before 4713 BC, and with them all other rows of the statement.
pub(in crate::grpc) fn moment(value: prost_types::Timestamp) -> Option<DateTime<Utc>> {
    let time = DateTime::from_timestamp(value.seconds, u32::try_from(value.nanos).ok()?)?;
    (time.year() >= 0).then_some(time)
}

impl TryFrom<v1::CrawlPolicy> for PolicyRequest {
    type Error = InvalidField;

    /// Fails if a value is out of bounds.
    fn try_from(asked: v1::CrawlPolicy) -> Result<Self, InvalidField> {
        let request = Self {
            max_pages: asked.max_pages,
            max_bytes: asked.max_bytes,
            max_depth: asked.max_depth,
            max_hosts: asked.max_hosts,
            max_duration: time("policy.max_duration", asked.max_duration)?,
            request_interval: time("policy.request_interval", asked.request_interval)?,
            shortest_interval: time("policy.shortest_interval", asked.shortest_interval)?,
            sitemaps: asked.sitemaps,
            store: asked.store,
            include: asked.include.map(|include| include.patterns),
            exclude: asked.exclude.map(|exclude| exclude.patterns),
            contact_url: asked.contact_url.filter(|url| !url.is_empty()),
            user_agent: asked.user_agent.filter(|name| !name.is_empty()),
            recrawl_interval: time("policy.recrawl_interval", asked.recrawl_interval)?,
        };
        request.checked().map_err(InvalidField::within("policy"))
    }
}

fn time(field: &str, value: Option<prost_types::Duration>) -> Result<Option<Duration>, InvalidField> {
    let value = value.map(Duration::try_from).transpose();
    value.map_err(|_| InvalidField::new(field, "a duration must not be negative"))
}

/// Converts a policy request. A complete policy is first converted to a request with all fields.
impl From<PolicyRequest> for v1::CrawlPolicy {
    fn from(policy: PolicyRequest) -> Self {
        Self {
            max_pages: policy.max_pages,
            max_bytes: policy.max_bytes,
            max_depth: policy.max_depth,
            max_hosts: policy.max_hosts,
            max_duration: policy.max_duration.map(duration),
            request_interval: policy.request_interval.map(duration),
            shortest_interval: policy.shortest_interval.map(duration),
            sitemaps: policy.sitemaps,
            store: policy.store,
            include: policy.include.map(|patterns| v1::PathPatterns { patterns }),
            exclude: policy.exclude.map(|patterns| v1::PathPatterns { patterns }),
            contact_url: policy.contact_url,
            user_agent: policy.user_agent,
            recrawl_interval: policy.recrawl_interval.map(duration),
        }
    }
}

impl TryFrom<v1::Constraints> for ConstraintsRequest {
    type Error = InvalidField;

    /// Fails if a value is out of bounds.
    fn try_from(asked: v1::Constraints) -> Result<Self, InvalidField> {
        let unmet = match v1::Unmet::try_from(asked.unmet) {
            Ok(unmet) => UnmetAction::try_from(unmet).ok(),
            Err(_) => return Err(InvalidField::new("constraints.unmet", "must be wait or fail")),
        };
        let v1::Constraints { countries, carriers, tags, bytes_per_day, .. } = asked;
        let request = Self { countries, carriers, tags, bytes_per_day, unmet };
        request.checked().map_err(InvalidField::within("constraints"))
    }
}

/// Converts a constraints request. Complete constraints are first converted to a request with all
/// fields.
impl From<ConstraintsRequest> for v1::Constraints {
    fn from(asked: ConstraintsRequest) -> Self {
        let unmet = asked.unmet.map_or(v1::Unmet::Unspecified, Into::into);
        let ConstraintsRequest { countries, carriers, tags, bytes_per_day, .. } = asked;
        Self { countries, carriers, tags, bytes_per_day, unmet: unmet.into() }
    }
}

/// Converts an enum of the scheduler to an enum of the protocol with the same values, and back. All
/// values of both enums must be listed.
macro_rules! same {
    ($($core:ident = $wire:ident { $($value:ident)+ })+) => {$(
        impl From<$core> for v1::$wire {
            fn from(word: $core) -> Self {
                match word { $($core::$value => Self::$value,)+ }
            }
        }

        impl TryFrom<v1::$wire> for $core {
            /// The error for `Unspecified`, which has no counterpart in the scheduler's enum.
            type Error = v1::$wire;

            fn try_from(word: v1::$wire) -> Result<Self, v1::$wire> {
                match word {
                    v1::$wire::Unspecified => Err(word),
                    $(v1::$wire::$value => Ok(Self::$value),)+
                }
            }
        }
    )+};
}

same! {
    TaskState = TaskState { Submitted Measuring Located Assigned Leased Done Failed Cancelled }
    ReasonKind = ReasonKind {
        Guard Robots Breaker Blocked NameNotFound ConnectionRefused NoConnection TimedOut Tls Redirect
        Status4xx Status5xx BrokenAnswer Unreachable Poison NoAgent Cancelled SameSite Other
    }
    WaitCause = WaitCause {
        Queued Measurements Choice Planned NoAgent NoneAcceptsWork NoLandmarks LandmarksAway AllQuarantined
        NoMap Confirming Address Pause Breaker Unmet
    }
    UnmetCause = UnmetCause { Excluded TakeNoWork }
    FallbackCause = FallbackCause {
        NoDistance NoAddress NothingShared NoSuffix NoPosition NoAgentPosition NoMap NobodyMeasured
        Unmeasured UntrustedMap
    }
    Parting = Parting {
        Lost Restarted Reconnected Replaced Left Removed Restored Crashed HandedBack Drained
        WaitedAway WaitedRemoved WaitedDrained WaitedPaused WaitedDisconnected WaitedExcluded
    }
    ReportGroup = ReportGroup { Agent City Carrier Day Reason Batch }
    Gain = Gain { BeginsAtOnce EndsSooner Nearer }
    UnmetAction = Unmet { Wait Fail }
    ServiceState = ServiceState { Ready Draining Drained Paused Away Removed Quarantined NeverConnected }
    EnrolmentState = EnrolmentState { Open Used Expired Revoked }
    Reachability = WayState { Failed Untried NotAsked NoBeacon Away Reached }
    Blocker = BlockedBy { Robots Guard Breaker }
    Budget = Budget { Pages Bytes Duration Depth }
    Metric = DistanceMetric { Ttfb Connect Icmp }
    AttentionKind = AttentionKind {
        SchedulerLost SchedulerVersions SchedulerDisk NoContactUrl NoAgent AgentsAway AgentsPaused AgentsQuarantined
        AgentClocks AgentVersions AgentDisks AgentTwins BeaconsUnreached NoLandmarks LandmarksAway MapAlarm
        OpenCircuits NoEligibleAgent BatchIdle FewLandmarks DatabaseReadOnly
    }
}

/// Like `same`, but one value of the scheduler's enum corresponds to the protocol's `Unspecified`.
macro_rules! same_or {
    ($core:ident = $wire:ident { $unspecified:ident or $($value:ident)+ }) => {
        impl From<$core> for $wire {
            fn from(word: $core) -> Self {
                match word {
                    $core::$unspecified => Self::Unspecified,
                    $($core::$value => Self::$value,)+
                }
            }
        }

        impl From<$wire> for $core {
            fn from(word: $wire) -> Self {
                match word {
                    $wire::Unspecified => Self::$unspecified,
                    $($wire::$value => Self::$value,)+
                }
            }
        }
    };
}

same_or! {
    Cause = Reason {
        Unknown or Dns Connect Tls Timeout Protocol Guard NoContactUrl Metric Order Refused ConnectTimeout NoReport
    }
}

pub(in crate::grpc) fn globe_position((position, source): (Position, Source)) -> v1::GlobePosition {
    let (latitude, longitude) = (position.latitude(), position.longitude());
    v1::GlobePosition { latitude, longitude, source: source.name().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_matches_in_either_case_and_must_meet_every_list() {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let places = Places::new(&texts(&["harbin", "CHANGCHUN"]), &texts(&["Cernet"]), &[]);
        assert!(places.include("Harbin", "CERNET", "CN") && places.include("Changchun", "cernet", ""));
        assert!(!places.include("Harbin", "Unicom", "CN") && !places.include("Tokyo", "CERNET", "CN"));
        assert!(!places.are_unset() && Places::default().are_unset());
        assert!(Places::default().include("", "", ""));
        assert!(Places::new(&texts(&["ÅRHUS"]), &[], &[]).include("Århus", "", ""));
    }

    #[test]
    fn a_range_of_times_is_checked_and_names_its_field() {
        let at = |seconds| Some(prost_types::Timestamp { seconds, nanos: 0 });
        assert!(TimeRange::new(at(1), at(2)).is_ok() && TimeRange::new(None, None) == Ok(TimeRange::default()));
        for (since, until, said) in [
            (at(2), at(2), "until: must be later than since"),
            (at(i64::MAX), None, "since: not a valid time"),
            (None, at(i64::MAX), "until: not a valid time"),
        ] {
            assert_eq!(TimeRange::new(since, until).unwrap_err().to_string(), said);
        }
    }
}
