//! Tests that judge times, or that must not run in parallel with another lab.

mod measured;
mod pace;
mod samples;
