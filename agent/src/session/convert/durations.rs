//! Converts durations between the protocol and the agent.

use std::time::Duration;

pub(in crate::session) fn duration(wire: Option<prost_types::Duration>) -> Option<Duration> {
    wire.and_then(|wire| Duration::try_from(wire).ok())
}

pub(super) fn to_wire(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}
