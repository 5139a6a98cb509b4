//! The `landfall-agent` binary.
fn main() {}
