//! Benchmarks, and experiments that reproduce the paper's figures. The demo needs none of them.

pub mod balance;
pub mod bench;
pub mod faithful;
pub mod fleet;
pub mod paper;
pub mod scheduling;
pub mod sweep;
