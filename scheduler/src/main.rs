//! The `landfall` binary: the scheduler, and the operator's commands.

use std::process::ExitCode;

use landfall_scheduler::cli::Cli;
use landfall_scheduler::{exit, telemetry, tls};

/// musl's own takes three times as long for small pieces on one thread.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::typed();
    telemetry::start();
    tls::install_crypto();
    exit::report(cli.run())
}
