//! The end-to-end tests: real binaries, real sockets, an emulated network, and the database asked afterwards.
//!
//! Intervals and lease times are shorter than an operator would set them, so that the tests take seconds; the rules they bound
//! stay the same. What judges times is in `quiet`, where one test at a time has the machine for itself; the others, in `busy`,
//! run beside each other and beside everything else (`ops/test.sh`).

#![expect(clippy::unwrap_used, reason = "a test stops where it breaks")]

mod busy;
mod harness;
mod quiet;
