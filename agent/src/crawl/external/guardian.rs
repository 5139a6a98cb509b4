//! Kills external crawlers if the agent is killed, so that none continues without a lease.
//!
//! A shell script reads the crawlers' process groups from a pipe. Only the agent has the pipe's
//! writing end, and the kernel closes it however the agent dies. When the pipe ends, the script
//! kills the process groups. The parent-death signal would not suffice, because it reaches only a
//! crawler's first process.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use nix::unistd::Pid;

const SCRIPT: &str = r#"
groups=
while read -r change group; do
    others=
    for other in $groups; do [ "$other" = "$group" ] || others="$others $other"; done
    groups=$others
    [ "$change" = remove ] || groups="$groups $group"
done
for group in $groups; do kill -s KILL -- "-$group"; done
"#;

/// A handle on the shell. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Guardian {
    /// `None` once the pipe has been closed. Writing does not block, because the agent writes lines
    /// of a few bytes, which the shell reads at once.
    pipe: Arc<Mutex<Option<ChildStdin>>>,
    _shell: Arc<Child>,
}

impl Guardian {
    pub(super) fn start() -> io::Result<Self> {
        let mut shell = Command::new("/bin/sh");
        // The shell has its own process group, so that Ctrl-C at the terminal reaches only the
        // agent.
        shell.args(["-c", SCRIPT]).process_group(0).current_dir("/");
        let mut shell = shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { pipe: Arc::new(Mutex::new(shell.stdin.take())), _shell: Arc::new(shell) })
    }

    pub(super) fn add(&self, group: Pid) {
        self.tell("add", group);
    }

    pub(super) fn remove(&self, group: Pid) {
        self.tell("remove", group);
    }

    fn tell(&self, change: &str, group: Pid) {
        let mut pipe = self.pipe.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(shell) = pipe.as_mut() else { return };
        if let Err(error) = writeln!(shell, "{change} {group}") {
            tracing::warn!(%error, "the process that guards crawlers has ended: they would outlive a killed agent");
            *pipe = None;
        }
    }

    /// Closes the pipe, as the kernel does when the agent dies.
    #[cfg(test)]
    pub(super) fn close(&self) {
        *self.pipe.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
