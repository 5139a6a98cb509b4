//! Reads the machine: its clock, the space of its disks, and its source of randomness.

pub(crate) mod clock;
pub(crate) mod disk;
pub mod secret;
