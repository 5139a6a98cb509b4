//! The gRPC services for operators, and the conversion of their messages to domain values and back.

pub(super) mod convert;
pub(super) mod embeddings;
pub(crate) mod estimates;
pub(super) mod events;
pub(super) mod fleet;
pub(super) mod named;
pub(super) mod removal;
pub(super) mod reports;
pub(super) mod sites;
pub(super) mod status;
#[cfg(test)]
pub(super) mod tests;
