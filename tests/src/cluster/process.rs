//! Child processes with log files. No child outlives the lab: a process that ignores SIGTERM is
//! killed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::machine::resident_memory;

/// Time between two polls of an awaited condition.
pub(super) const POLL: Duration = Duration::from_millis(50);
/// Number of lines from the end of a log that an error message contains.
const TAIL_LINES: usize = 15;

/// A child process. Dropping it kills the process.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    pid: Option<Pid>,
    log: PathBuf,
}

impl Process {
    /// Starts a command. The output is appended to the file `name`.log in `directory`.
    pub fn spawn(name: &str, mut command: Command, directory: &Path) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open the log {}", log.display()))?;
        let errors = output.try_clone().context("share the log")?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("start {name}"))?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).map(Pid::from_raw);
        Ok(Self { name: name.to_owned(), child, pid, log })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id; `None` if the process has ended.
    pub fn pid(&self) -> Option<Pid> {
        self.child.id().and(self.pid)
    }

    /// The current memory of the process, in bytes. Fails if the process has ended.
    pub fn resident_memory(&self) -> anyhow::Result<f64> {
        let resident = self.pid().and_then(resident_memory);
        Ok(resident.with_context(|| format!("the process has ended: {}", self.tail()))? as f64)
    }

    /// Fails if the process has ended. The error message contains the end of the log.
    pub fn ensure_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait().with_context(|| format!("ask after {}", self.name))? {
            Some(status) => bail!("{} ended by itself ({status})\n{}", self.name, self.tail()),
            None => Ok(()),
        }
    }

    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.with_context(|| format!("kill {}", self.name))
    }

    pub fn terminate(&self) {
        if let Some(pid) = self.pid()
            && let Err(error) = kill(pid, Signal::SIGTERM)
        {
            tracing::debug!(%error, process = self.name, "a process had ended before it was asked to");
        }
    }

    /// Waits until the process ends. After `patience`, the process is killed, and the result is
    /// `None`.
    pub async fn wait(&mut self, patience: Duration) -> anyhow::Result<Option<ExitStatus>> {
        match tokio::time::timeout(patience, self.child.wait()).await {
            Ok(status) => Ok(Some(status.with_context(|| format!("wait for {}", self.name))?)),
            Err(_) => {
                self.kill().await?;
                Ok(None)
            }
        }
    }

    pub fn log(&self) -> &Path {
        &self.log
    }

    pub fn tail(&self) -> String {
        tail(&self.log)
    }
}

/// The last lines of a log, preceded by its path.
pub fn tail(log: &Path) -> String {
    let text = std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
    let mut shown = format!("  the end of {}:", log.display());
    for line in last {
        shown.push_str("\n    ");
        shown.push_str(line);
    }
    shown
}

/// Waits for SIGTERM or Ctrl-C.
pub async fn interrupted() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        },
        // If the signal handler cannot be installed, SIGTERM ends the program at once.
        Err(_) => std::future::pending().await,
    }
}

/// Calls `look` repeatedly until it returns a result, and fails after `patience`. The error message
/// contains `awaited`.
pub async fn until<T>(
    awaited: &str,
    patience: Duration,
    mut look: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await.with_context(|| format!("wait for {awaited}"))? {
            return Ok(found);
        }
        if start.elapsed() > patience {
            bail!("waited {} s for {awaited} in vain", patience.as_secs());
        }
        tokio::time::sleep(POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unexpected_end_is_reported_with_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo out of coffee >&2; exit 3"]);
        let mut process = Process::spawn("brewer", command, directory.path()).unwrap();
        assert!(process.wait(Duration::from_secs(10)).await.unwrap().is_some());
        let complaint = process.ensure_running().unwrap_err().to_string();
        assert!(complaint.contains("brewer ended") && complaint.contains("out of coffee"), "{complaint}");
        assert_eq!(process.pid(), None);
    }

    #[tokio::test]
    async fn a_process_that_ignores_sigterm_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let spawn = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Process::spawn("sh", command, directory.path()).unwrap()
        };
        let mut polite = spawn("exec sleep 60");
        polite.terminate();
        assert!(polite.wait(Duration::from_secs(10)).await.unwrap().is_some());
        let mut deaf = spawn("trap '' TERM; echo ready; while :; do sleep 1; done");
        until("the trap", Duration::from_secs(10), async || Ok(deaf.tail().contains("ready").then_some(())))
            .await
            .unwrap();
        deaf.terminate();
        assert_eq!(deaf.wait(Duration::from_millis(300)).await.unwrap(), None);
        assert_eq!(deaf.pid(), None);
    }

    #[tokio::test]
    async fn a_timeout_says_what_was_awaited() {
        let error = until("a miracle", Duration::ZERO, async || Ok(None::<()>)).await.unwrap_err();
        assert_eq!(error.to_string(), "waited 0 s for a miracle in vain");
    }
}
