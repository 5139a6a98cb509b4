//! Reads the machine's clocks and the free space of its disks.

pub(crate) mod clock;
pub(crate) mod free_space;
