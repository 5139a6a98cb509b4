//! The processes of one external crawler form a process group, so that each signal reaches all of
//! them. The guardian kills them if the agent is killed, so that none continues without a lease.
//!
//! A shell script reads the crawlers' process groups from a pipe. Only the agent has the pipe's
//! writing end, and the kernel closes it however the agent dies. When the pipe ends, the script
//! kills the process groups. The parent-death signal would not suffice, because it reaches only a
//! crawler's first process.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

/// Interval between checks of whether a process group has ended. The kernel sends no notification
/// when a group ends.
const POLL: Duration = Duration::from_millis(20);

/// A crawler's process group. Dropping it kills the processes.
#[derive(Debug)]
pub(super) struct ProcessGroup {
    first: Child,
    /// The id of the group, and of its first process. The kernel does not reuse the id while the
    /// group has a process.
    id: Pid,
    guardian: Guardian,
}

impl ProcessGroup {
    pub(super) fn spawn(mut command: Command, guardian: &Guardian) -> io::Result<Self> {
        let first = command.process_group(0).spawn()?;
        let id = first.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        let id = id.ok_or_else(|| io::Error::other("the crawler's process has no id"))?;
        guardian.add(id);
        Ok(Self { first, id, guardian: guardian.clone() })
    }

    /// Returns how the first process ended. Cancel-safe.
    pub(super) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.first.wait().await
    }

    /// Asks all processes to end, and waits for them for at most `grace`.
    pub(super) async fn stop(&mut self, grace: Duration) {
        self.signal(Signal::SIGTERM);
        let all = async {
            // Errors are ignored: the loop checks the whole group next, and dropping the group
            // kills it.
            drop(self.first.wait().await);
            while killpg(self.id, None) != Err(Errno::ESRCH) {
                sleep(POLL).await;
            }
        };
        drop(timeout(grace, all).await);
    }

    fn signal(&self, signal: Signal) {
        match killpg(self.id, signal) {
            // `ESRCH` means that the group has no process left.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => tracing::warn!(group = self.id.as_raw(), %error, "a crawler's processes get no {signal}"),
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        self.guardian.remove(self.id);
    }
}

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
    _shell: Arc<std::process::Child>,
}

impl Guardian {
    pub(super) fn start() -> io::Result<Self> {
        let mut shell = std::process::Command::new("/bin/sh");
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
