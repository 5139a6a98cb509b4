//! Tests that judge times.

mod measured;
mod pace;
mod samples;
