//! The `lab` binary.
fn main() {}
