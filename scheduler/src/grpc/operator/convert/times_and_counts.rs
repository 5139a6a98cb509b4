//! Converts times, durations, round trips and counts to fields of messages and back.

use std::time::Duration;

use chrono::{DateTime, Datelike as _, Utc};

use crate::model::Rtt;

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
