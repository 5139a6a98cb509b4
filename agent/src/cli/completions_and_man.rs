//! `landfall-agent completions` prints the completions for a shell, and `landfall-agent man` writes
//! the manual pages.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;

#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Prints the completions of `command`, the whole program.
pub(super) fn print_completions(args: &CompletionsArgs, mut command: Command) {
    clap_complete::generate(args.shell, &mut command, "landfall-agent", &mut std::io::stdout());
}

#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The folder.
    folder: PathBuf,
}

/// Writes the manual of `command`, the whole program.
pub(super) fn write_pages(args: &ManArgs, command: Command) -> anyhow::Result<()> {
    write_manual(&args.folder, command)
}

/// Writes a manual page for each command into a folder.
fn write_manual(folder: &Path, command: Command) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(command, folder))
        .with_context(|| format!("write the manual into {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command;

    #[test]
    fn every_command_has_a_page_of_the_manual() {
        let folder = tempfile::tempdir().unwrap();
        write_manual(folder.path(), command()).unwrap();
        for command in command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let page = folder.path().join(format!("landfall-agent-{}.1", command.get_name()));
            assert!(page.is_file(), "{}", page.display());
        }
        assert!(folder.path().join("landfall-agent.1").is_file());
    }
}
