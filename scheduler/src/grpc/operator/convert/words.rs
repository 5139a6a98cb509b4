//! Converts enums that have the same values in the scheduler's code and in the protocol.

use landfall_proto::v1;
use landfall_proto::v1::measurement_failure::Reason;

use crate::config::Metric;
use crate::model::ReportGroup;
use crate::model::constraints::UnmetAction;
use crate::model::service::ServiceState;
use crate::model::{Blocker, Budget, FallbackCause, Gain, Parting, ReasonKind, TaskState, UnmetCause, WaitCause};
use crate::status::AttentionKind;
use crate::store::agents::enrolments::State as EnrolmentState;
use crate::store::measurements::failures::Cause;
use crate::store::measurements::reach::Reachability;

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
        OpenCircuits NoEligibleAgent BatchIdle FewLandmarks
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
