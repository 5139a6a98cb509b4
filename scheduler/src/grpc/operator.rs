//! The gRPC services for operators, and the conversion of their messages to domain values and back.

mod agents;
mod assignments_and_hosts;
mod batches;
pub(super) mod capacity_plan;
pub(super) mod convert;
mod embeddings;
mod enrolments;
mod events;
pub(super) mod landmarks;
pub(super) mod named;
mod pages;
mod reports;
pub(super) mod services;
pub(super) mod settings;
mod sites;
mod status;
#[cfg(test)]
pub(super) mod tests;
mod throughput;

pub(crate) use batches::facts::ready;
