//! Runs the agent as the user who owns its folder: refuses root in the service's folder, and builds
//! the command lines that start an agent as the owner.

use std::path::Path;

use crate::disk::folder;

/// The systemd unit that the Debian package installs.
const UNIT: &str = "/lib/systemd/system/landfall-agent.service";
/// This folder exists if the machine was booted with systemd (`sd_booted(3)`).
const SYSTEMD_RUNS: &str = "/run/systemd/system";

/// Refuses to run as root in the service's default folder, because root would create files that the
/// service cannot read. `names_folder` is whether the command line gives a folder, which is
/// accepted.
pub(super) fn refuse_to_run_for_another(names_folder: bool) -> anyhow::Result<()> {
    let dir = folder::default_dir();
    match folder::other_owner(&dir) {
        Some(owner) if !names_folder => anyhow::bail!(
            "{} belongs to the user {}, and this process runs as root: start the agent with: {}",
            dir.display(),
            owner.name,
            start_command(&dir)
        ),
        _ => Ok(()),
    }
}

/// The command that starts the agent with this folder. The agent runs as the user who owns the
/// folder.
pub(super) fn start_command(dir: &Path) -> String {
    let has_service = dir == folder::default_dir() && Path::new(UNIT).exists() && Path::new(SYSTEMD_RUNS).exists();
    match folder::other_owner(dir) {
        Some(_) if has_service => "systemctl enable --now landfall-agent".to_owned(),
        _ => as_owner(dir, "run"),
    }
}

/// The command line that runs the subcommand `command` of `landfall-agent` for the agent with this
/// folder. The command runs as the user who owns the folder.
pub(super) fn as_owner(dir: &Path, command: &str) -> String {
    let default = dir == folder::default_dir();
    let flag = if default { String::new() } else { format!(" --dir {}", dir.display()) };
    match folder::other_owner(dir) {
        Some(owner) => format!("runuser -u {} -- landfall-agent {command}{flag}", owner.name),
        None => format!("landfall-agent {command}{flag}"),
    }
}
