//! Benchmarks, and experiments that reproduce the paper's figures. The demo needs none of them.

pub mod balance;
pub mod bench;
pub mod faithful;
pub mod paper;
pub mod sweep;
