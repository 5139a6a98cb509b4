//! The gRPC services for operators, and the conversion of their messages to domain values and back.

pub(super) mod convert;
pub(super) mod embeddings;
pub(super) mod events;
pub(super) mod fleet;
pub(super) mod named;
pub(super) mod removal;
pub(super) mod reports;
pub(super) mod sites;
#[cfg(test)]
pub(super) mod tests;
