//! The end-to-end tests: real binaries, real sockets, an emulated network, and the database asked afterwards.
//!
//! Intervals and lease times are shorter than an operator would set them, so that the tests take seconds; the rules they bound
//! stay the same. Tests that judge times are in `quiet`, and run one at a time, alone on the
//! machine. The tests in `busy` run beside each other and beside everything else (`ops/test.sh`).

#![expect(clippy::unwrap_used, reason = "a test stops where it breaks")]

mod busy;
mod harness;
mod quiet;
