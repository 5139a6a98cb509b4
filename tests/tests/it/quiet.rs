//! Tests that judge times, or that must not run beside another lab.

mod measured;
mod pace;
mod paper;
mod samples;
