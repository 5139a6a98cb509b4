//! The `lab` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    landfall_lab::cli::main()
}
