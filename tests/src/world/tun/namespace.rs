//! A network namespace that the lab created, and a thread in the namespace that executes jobs.
//!
//! A socket belongs to the namespace of the thread that created it, and a process to the namespace
//! of the thread that started it. Afterwards, any thread can use the socket or the process. The
//! namespace has no name in the file system, so the kernel removes it with its last thread, process
//! and socket. A killed lab therefore leaves no namespace behind.

use std::ffi::OsStr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, anyhow};
use nix::sched::{CloneFlags, unshare};
use tokio::process::Command;
use tokio::runtime::Handle;

/// Maximum number of jobs that wait for the thread.
const MAX_JOBS: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

/// A namespace and its thread.
#[derive(Debug)]
pub(super) struct NamespaceThread {
    name: String,
    /// `None` after `end`. The lock is not held while a job runs.
    inside: Mutex<Option<Worker>>,
}

#[derive(Debug)]
struct Worker {
    jobs: SyncSender<Job>,
    thread: JoinHandle<()>,
}

impl NamespaceThread {
    /// Creates an empty namespace, which needs root.
    pub(super) fn start(name: &str) -> anyhow::Result<Self> {
        let (jobs, asked) = sync_channel(MAX_JOBS);
        let (tell, told) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || serve(&tell, &asked))
            .with_context(|| format!("start the thread of {name}"))?;
        told.recv().context("the thread ended")?.with_context(|| format!("make the network namespace of {name}"))?;
        Ok(Self { name: name.to_owned(), inside: Mutex::new(Some(Worker { jobs, thread })) })
    }

    /// Runs a job in the namespace, and waits for its result. The job runs in the context of the
    /// caller's tokio runtime, so that the job can create tokio sockets.
    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
        let runtime = Handle::try_current().ok();
        let (tell, told) = sync_channel(1);
        let work: Job = Box::new(move || {
            let _context = runtime.as_ref().map(Handle::enter);
            // The result is never an error, because the receiver is waiting.
            let _ = tell.send(job());
        });
        let ended = || anyhow!("the network namespace of {} has ended", self.name);
        let jobs =
            self.inside.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|inside| inside.jobs.clone());
        jobs.ok_or_else(ended)?.send(work).map_err(|_| ended())?;
        told.recv().map_err(|_| ended())
    }

    /// Ends the thread. Processes that were started with [`NetNamespace::command`] are killed with
    /// it.
    pub(super) fn end(&self) {
        let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Worker { jobs, thread }) = inside else { return };
        drop(jobs);
        if thread.join().is_err() {
            tracing::warn!(namespace = self.name, "a job in a network namespace panicked");
        }
    }
}

impl Drop for NamespaceThread {
    fn drop(&mut self) {
        self.end();
    }
}

fn serve(tell: &SyncSender<nix::Result<()>>, jobs: &Receiver<Job>) {
    let made = unshare(CloneFlags::CLONE_NEWNET);
    let failed = made.is_err();
    // The result is never an error, because the receiver is waiting.
    let _ = tell.send(made);
    if failed {
        return;
    }
    while let Ok(job) = jobs.recv() {
        job();
    }
}

/// The network namespace of the host, or a namespace that the lab created. Clones share the thread.
#[derive(Debug, Clone)]
pub struct NetNamespace(Option<Arc<NamespaceThread>>);

impl NetNamespace {
    /// The namespace in which the lab was started.
    pub const HOST: Self = Self(None);

    pub(super) fn inside(namespace: NamespaceThread) -> Self {
        Self(Some(Arc::new(namespace)))
    }

    /// Runs a job in the namespace, and waits for its result. The job must be quick, such as
    /// creating a socket or starting a process.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
        match &self.0 {
            None => Ok(job()),
            Some(namespace) => namespace.run(job),
        }
    }

    /// A command that [`Self::run`] can start. In a namespace that the lab created, the process is
    /// killed when the thread of the namespace ends. `setpriv` replaces itself with the program, so
    /// the process id is that of the program.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        if self.0.is_none() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    }

    /// Ends the namespace. The host's namespace is never ended.
    pub(super) fn end(&self) {
        if let Some(namespace) = &self.0 {
            namespace.end();
        }
    }
}
