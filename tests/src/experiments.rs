//! Benchmarks, and experiments that reproduce the paper's figures. The demo needs none of them.

pub mod bench;
#[cfg(test)]
mod estimator_accuracy;
pub mod paper;
pub mod sweep;
