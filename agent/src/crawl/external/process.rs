//! The processes of one external crawler. The processes form a process group, so that each signal
//! reaches all of them and no process is left behind.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::guardian::Guardian;

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
