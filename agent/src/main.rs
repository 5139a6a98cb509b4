//! The `landfall-agent` binary.

use std::process::ExitCode;

use clap::Parser;
use landfall_agent::cli::{Cli, Threads};
use landfall_agent::exit;
use tokio::runtime::Builder;

/// Threads of the runtime: an agent waits more than it works, and thirty may share one machine.
const WORKERS: usize = 2;

/// musl's own takes three times as long for small pieces on one thread.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut builder = match cli.threads() {
        Threads::One => Builder::new_current_thread(),
        Threads::Several => Builder::new_multi_thread(),
    };
    let runtime = builder.worker_threads(WORKERS).enable_all().build();
    let result = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let result = runtime.block_on(cli.run());
        runtime.shutdown_background();
        result
    });
    exit::report(result)
}
