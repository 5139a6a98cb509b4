//! Converts between the messages of the protocol and the agent's types. This module is pure.

pub(super) mod durations;
pub(super) mod leases;
pub(super) mod measurements;
mod sentence;
