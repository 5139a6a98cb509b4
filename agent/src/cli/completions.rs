//! `landfall-agent completions`: prints the completions for a shell.

use clap::{Args, Command};
use clap_complete::Shell;

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Prints the completions of `command`, the whole program.
pub(super) fn print(args: &CompletionsArgs, mut command: Command) {
    clap_complete::generate(args.shell, &mut command, "landfall-agent", &mut std::io::stdout());
}
