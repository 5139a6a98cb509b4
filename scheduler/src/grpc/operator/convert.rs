//! Converts messages of operators to domain values and back. This file contains the conversions
//! that all services share.
//!
//! Requests are validated: an invalid field gives an [`InvalidField`] that names the field.
//! Responses are not validated.

use std::error::Error;
use std::time::Duration;

use chrono::{DateTime, Datelike as _, Utc};

use crate::model::{OutOfBounds, Rtt, naming};

pub(in crate::grpc) mod capacity_plan;
mod causes;
pub(in crate::grpc) mod embeddings;
pub(in crate::grpc) mod enrolments;
pub(in crate::grpc) mod events;
pub(in crate::grpc) mod explain;
pub(in crate::grpc) mod filters;
pub(in crate::grpc) mod fleet;
pub(in crate::grpc) mod landmarks;
mod policies;
pub(in crate::grpc) mod reach;
pub(in crate::grpc) mod reports;
pub(in crate::grpc) mod sites;
mod status;
pub(in crate::grpc) mod throughput;
mod words;

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
    fn within(of: &str) -> impl FnOnce(OutOfBounds) -> Self {
        move |error| Self::new(format!("{of}.{}", error.field), error.problem)
    }

    /// Makes the error for a field whose text did not parse.
    pub(in crate::grpc) fn of<P: Error>(field: impl Into<String>) -> impl FnOnce(P) -> Self {
        move |problem| Self::new(field, problem.to_string())
    }
}

fn agent_name(field: &str, text: &str) -> Result<String, InvalidField> {
    naming::agent(text).map(str::to_owned).map_err(InvalidField::of(field))
}

/// Checks that a text is one line and not empty.
fn line(field: &str, text: &str) -> Result<String, InvalidField> {
    naming::one_line(text).map(str::to_owned).map_err(InvalidField::of(field))
}

/// Converts a duration and checks its bounds; `None` if the request has no duration.
fn bounded(
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

fn rtt(value: Option<Rtt>) -> Option<prost_types::Duration> {
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
