//! The gRPC service for agents. It enrols agents and opens their sessions. Each session runs as an
//! async task (`session`).
//!
//! All data that agents send are validated by the file that handles the message: numbers are
//! clamped to their range, and an invalid field gives an `InvalidArgument` that names the field.

mod enrol_and_connect;
mod group_commit;
mod leases;
mod measurements;
mod outcomes;
mod session;

pub(super) use enrol_and_connect::{AgentDesk, MAX_AGENT_MESSAGE};
