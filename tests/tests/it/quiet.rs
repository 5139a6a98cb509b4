//! Tests that check measured times.

mod measured;
mod pace;
mod samples;
