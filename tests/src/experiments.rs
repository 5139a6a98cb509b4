//! Benchmarks, and experiments that reproduce the paper's figures. The demo needs none of them.

pub mod bench;
pub mod estimator_trials;
pub mod paper;
pub mod sweep;
