//! The `landfall` binary: the scheduler, and the operator's commands.

use std::process::ExitCode;

/// For small allocations on one thread, musl's own allocator takes three times as long as mimalloc.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    landfall_scheduler::cli::main()
}
