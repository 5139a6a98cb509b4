//! The gRPC service for agents. It enrols agents and opens their sessions. Each session runs as an
//! async task (`session`).
//!
//! All data that agents send are validated by the file that handles the message: numbers are
//! clamped to their range, and an invalid field gives an `InvalidArgument` that names the field.

mod check;
mod checkpoints;
mod enrolment;
mod group_commit;
mod heartbeats;
mod measurements;
mod message_fields;
mod orders;
mod outbound_queue;
mod outcome_commits;
mod outcomes;
mod permits;
mod registration;
mod returned_leases;
mod service;
mod session;
mod session_opening;
mod session_state;

pub(super) use service::{AgentDesk, MAX_AGENT_MESSAGE};
