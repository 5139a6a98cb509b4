//! The `landfall` binary: the scheduler, and the operator's commands.

use std::process::ExitCode;

/// musl's own allocator takes three times as long for small allocations on one thread.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    landfall_scheduler::cli::main()
}
