//! `lab sweep`: simulates the paper's experiment for all combinations of the factors' values.
//!
//! The simulation (`sweep/simulated_crawls`, `sweep/simulated_scheduler`) is a discrete-event
//! simulation. It computes transfer times as the lab's network does, and chooses agents with the
//! scheduler's strategy code. The settings are in `tests/experiments.toml`. `lab paper` runs some
//! of these cells with real agents, and compares its results with the simulation's results.

pub mod batch;
pub mod list_scheduler;
pub mod results;
pub mod run;
pub mod settings;
pub mod simulated_crawls;
pub mod simulated_scheduler;
mod simulated_stragglers;
pub mod survey;
pub mod targets;

pub use self::run::{SweepArgs, sweep};
