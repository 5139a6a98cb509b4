//! Converts messages of operators to domain values and back. This folder contains the conversions
//! that several services share; each service's own conversions stand beside it.
//!
//! Requests are validated; responses are not.

pub(in crate::grpc) mod filters;
mod policies;
mod request_fields;
mod times_and_counts;
mod words;

pub use request_fields::InvalidField;
pub(in crate::grpc) use request_fields::{MAX_CHUNK, agent_name, bounded, line};
pub(in crate::grpc) use times_and_counts::{count, duration, moment, plain, rtt, timestamp, whole};
