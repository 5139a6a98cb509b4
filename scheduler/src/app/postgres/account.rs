//! The system user that runs the server. Postgres refuses to run as root, so a scheduler that runs
//! as root starts the server as the user `postgres`.
//!
//! `setpriv` (util-linux, on every Debian system) changes the user and requests the parent-death
//! signal. If this program did that itself, it would need unsafe code between fork and exec.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow};
use nix::unistd::{Gid, Uid, User};

use super::error::PostgresError;

/// The superuser of the cluster. If the scheduler runs as root, this is also the system user that
/// runs the server.
pub(super) const USER: &str = "postgres";
/// A shell script that runs between `setpriv` and the program. It exits if the parent has already
/// ended, because then the parent-death signal would never be sent.
const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$1" ] || exit 1; shift; exec "$@""#;

/// The user that runs the server.
#[derive(Debug, Clone, Copy)]
pub(super) enum Account {
    /// The same user as the scheduler.
    Own(Uid),
    /// The user `postgres`, for a scheduler that runs as root.
    Dropped(Uid, Gid),
}

impl Account {
    /// The user that runs servers started by this process.
    pub(super) fn of_server() -> Result<Self, PostgresError> {
        Self::of_server_of(Uid::effective())
    }

    /// The user that runs servers started by a scheduler that runs as the user `scheduler`.
    pub(super) fn of_server_of(scheduler: Uid) -> Result<Self, PostgresError> {
        if !scheduler.is_root() {
            return Ok(Self::Own(scheduler));
        }
        match User::from_name(USER) {
            Ok(Some(user)) => Ok(Self::Dropped(user.uid, user.gid)),
            Ok(None) => Err(PostgresError::NoAccount),
            Err(errno) => Err(anyhow!(errno).context("look up the user postgres in /etc/passwd").into()),
        }
    }

    pub(super) fn uid(self) -> Uid {
        match self {
            Self::Own(uid) | Self::Dropped(uid, _) => uid,
        }
    }

    /// Checks that `setpriv` can be run.
    pub(super) fn check_programs() -> Result<(), PostgresError> {
        let asked = Command::new("setpriv").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        match asked {
            Ok(_) => Ok(()),
            Err(_) => Err(PostgresError::NoSetpriv),
        }
    }

    /// Makes a command that runs as this user, in a clean environment. The process receives SIGINT
    /// when the *thread* that spawned it ends.
    pub(super) fn command(self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        if let Self::Dropped(uid, gid) = self {
            command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}")).arg("--init-groups");
        }
        command.args(["--pdeathsig", "INT", "--", "/bin/sh", "-c", UNLESS_ORPHANED, "sh"]);
        command.arg(std::process::id().to_string()).arg(program);
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        command.env_clear().env("PATH", path).env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
        command
    }

    /// Makes this user the owner of a directory.
    pub(super) fn give(self, path: &Path) -> anyhow::Result<()> {
        match self {
            Self::Own(_) => Ok(()),
            Self::Dropped(uid, gid) => std::os::unix::fs::chown(path, Some(uid.as_raw()), Some(gid.as_raw()))
                .with_context(|| format!("make the user postgres the owner of {}", path.display())),
        }
    }

    /// Checks that this user may enter the data directory and every directory above it.
    pub(super) fn check_reach(self, data_dir: &Path) -> Result<(), PostgresError> {
        if matches!(self, Self::Own(_)) || self.can_pass(data_dir)? {
            return Ok(());
        }
        let mut downwards: Vec<PathBuf> = data_dir.ancestors().map(Path::to_owned).collect();
        downwards.reverse();
        for parent in downwards {
            if !self.can_pass(&parent)? {
                return Err(PostgresError::Unreachable { path: data_dir.to_owned(), blocked: parent });
            }
        }
        Ok(())
    }

    /// Tests access in a process that runs as this user, so that access control lists are respected
    /// too.
    fn can_pass(self, dir: &Path) -> anyhow::Result<bool> {
        let mut test = self.command(Path::new("test"));
        // Spawning fails only if `setpriv` is missing.
        let status = test.arg("-x").arg(dir).stderr(Stdio::null()).status().context("run setpriv")?;
        Ok(status.success())
    }
}
