//! Tests that judge times, or that no other lab may run beside.

mod measured;
mod pace;
mod paper;
mod samples;
