//! The end-to-end tests. They run the real binaries with real sockets in an emulated network, and
//! check the database.
//!
//! Intervals and lease times are shorter than in production, so that each test takes only seconds.
//! Tests in `quiet` check measured times, and run after all other tests: alone if a second
//! scheduler would distort their times, and otherwise two at once. Tests in `busy` run in parallel
//! with each other and with other tests (`ops/test.sh`). Tests in `reference` compare pages with
//! the programs, and start no processes.

#![expect(clippy::unwrap_used, reason = "a test stops where it breaks")]

mod busy;
mod harness;
mod quiet;
mod reference;
