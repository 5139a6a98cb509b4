//! Validates the fields of operators' requests. An invalid field gives an [`InvalidField`] that
//! names the field.

use std::error::Error;
use std::time::Duration;

use crate::model::{OutOfBounds, naming};

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
