//! The gRPC service for agents. It enrols agents and opens their sessions. Each session runs as an
//! async task (`stream`).
//!
//! All data that agents send are validated (`received`, and the registration in `enrol_and_connect`):
//! numbers are clamped to their range, and an invalid field gives an `InvalidArgument` that names
//! the field.

mod enrol_and_connect;
mod fields;
mod group_commit;
mod heartbeats;
mod inbox;
mod leases;
mod measurements;
mod outbound;
mod outcomes;
mod patience;
mod received;
mod session;
mod stream;
mod work;

pub(super) use enrol_and_connect::{AgentDesk, MAX_AGENT_MESSAGE};
