//! Tests that judge times, or that must not run in parallel with another lab.

mod dashboard;
mod measured;
mod pace;
mod paper;
mod samples;
