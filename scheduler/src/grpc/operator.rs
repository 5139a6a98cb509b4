//! The gRPC services for operators, and the conversion of their messages to domain values and back.

mod agent_details;
mod agent_tags;
mod assignments;
mod batches;
pub(super) mod convert;
pub(super) mod embeddings;
mod enrolments;
pub(super) mod events;
mod explain;
pub(super) mod fleet;
pub(super) mod named;
mod paging;
mod reach;
pub(super) mod reports;
pub(super) mod site_details;
pub(super) mod sites;
pub(super) mod status;
#[cfg(test)]
pub(super) mod tests;
mod throughput;

pub(crate) use batches::remaining_time::Estimates;
