//! The server process of the private Postgres. It ends when the scheduler's process ends.
//!
//! The kernel sends the parent-death signal when the *thread* that spawned the child ends.
//! Therefore a separate thread spawns the server and lives as long as the server. The server has
//! its own process group, so that Ctrl-C at the terminal reaches only the scheduler. The scheduler
//! needs the database until its services and jobs have ended.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::watch;

use super::account::Account;

/// A server process. A thread waits until the process ends.
#[derive(Debug)]
pub(super) struct ServerProcess {
    pid: Pid,
    /// How the server ended; `None` while it runs.
    ended: watch::Receiver<Option<String>>,
}

impl ServerProcess {
    pub(super) fn spawn(
        account: &Account,
        postgres: &Path,
        cluster: &Path,
        settings: &[String],
        log: &Path,
    ) -> anyhow::Result<Self> {
        let log_file = File::options().write(true).create(true).truncate(true).mode(0o600).open(log);
        let log_file = log_file.with_context(|| format!("open {}", log.display()))?;
        let log_again = log_file.try_clone().with_context(|| format!("open {}", log.display()))?;
        let mut command = account.command(postgres);
        command.arg("-D").arg(cluster);
        for setting in settings {
            command.arg("-c").arg(setting);
        }
        command.process_group(0).stdout(Stdio::from(log_file)).stderr(Stdio::from(log_again));

        let (started, starting) = mpsc::sync_channel(1);
        let (ending, ended) = watch::channel(None);
        std::thread::Builder::new()
            .name("private-postgres".to_owned())
            .spawn(move || mind(command, &started, &ending))
            .with_context(|| format!("start a thread for {}", postgres.display()))?;
        let id = starting.recv().context("start Postgres: its thread died")?.context("run setpriv")?;
        Ok(Self { pid: Pid::from_raw(id), ended })
    }

    /// Waits until the server has ended. Returns how it ended.
    pub(super) async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(status) => status.clone().unwrap_or_default(),
            Err(_) => "its thread died".to_owned(),
        }
    }

    /// Requests a fast shutdown: connections are closed and all data are written.
    pub(super) fn interrupt(&self) {
        self.signal(Signal::SIGINT);
    }

    /// Requests an immediate shutdown. The next start then recovers the data.
    pub(super) fn quit(&self) {
        self.signal(Signal::SIGQUIT);
    }

    fn signal(&self, signal: Signal) {
        // Only a running server is signalled, because another process may have the PID of a server
        // that has ended.
        if self.ended.borrow().is_none()
            && let Err(errno) = kill(self.pid, signal)
        {
            tracing::warn!(pid = self.pid.as_raw(), "the private Postgres could not be signalled: {errno}");
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.interrupt();
    }
}

/// The body of the server's thread: spawns the server and waits until it ends.
fn mind(
    mut command: Command,
    started: &mpsc::SyncSender<std::io::Result<i32>>,
    ending: &watch::Sender<Option<String>>,
) {
    let spawned = command.spawn();
    let mut child: Child = match spawned {
        Ok(child) => child,
        Err(error) => {
            // The receiver is waiting for this message, so sending cannot fail.
            drop(started.send(Err(error)));
            return;
        }
    };
    let id = i32::try_from(child.id()).map_err(std::io::Error::other);
    drop(started.send(id));
    let status = match child.wait() {
        Ok(status) => status.to_string(),
        Err(error) => format!("wait: {error}"),
    };
    ending.send_replace(Some(status));
}
