//! A network namespace: a thread that lives in it and does there what it is asked to.
//!
//! A socket belongs to the namespace of the thread that made it, and a process to that of the thread that started it;
//! afterwards both are used from anywhere. The namespace has no name in the file system: the kernel removes it with the
//! last thread, process and socket in it, so a killed lab leaves none behind.

use std::ffi::OsStr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, anyhow};
use nix::sched::{CloneFlags, unshare};
use tokio::process::Command;
use tokio::runtime::Handle;

/// Jobs that may wait for the thread; each caller waits for its job's end.
const MAX_JOBS: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

/// A namespace of its own, and the thread in it.
#[derive(Debug)]
pub(super) struct NamespaceThread {
    name: String,
    /// Taken when it ends; never held while a job runs.
    inside: Mutex<Option<Worker>>,
}

#[derive(Debug)]
struct Worker {
    jobs: SyncSender<Job>,
    thread: JoinHandle<()>,
}

impl NamespaceThread {
    /// Makes a namespace with nothing in it.
    ///
    /// # Errors
    /// When the system refuses: it takes root.
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

    /// Does a job inside and waits for it. It finds the caller's runtime, so that it may make sockets of the runtime's.
    fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
        let runtime = Handle::try_current().ok();
        let (tell, told) = sync_channel(1);
        let work: Job = Box::new(move || {
            let _context = runtime.as_ref().map(Handle::enter);
            // The caller waits.
            let _ = tell.send(job());
        });
        let ended = || anyhow!("the network namespace of {} has ended", self.name);
        let jobs =
            self.inside.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|inside| inside.jobs.clone());
        jobs.ok_or_else(ended)?.send(work).map_err(|_| ended())?;
        told.recv().map_err(|_| ended())
    }

    /// Ends the thread, and with it every process that was started there.
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
    // The starter of the namespace waits.
    let _ = tell.send(made);
    if failed {
        return;
    }
    while let Ok(job) = jobs.recv() {
        job();
    }
}

/// Where sockets are made and processes started: on the host, or in a namespace. Cheap to clone.
#[derive(Debug, Clone)]
pub struct NetNamespace(Option<Arc<NamespaceThread>>);

impl NetNamespace {
    /// The network namespace the lab itself was started in.
    pub const HOST: Self = Self(None);

    pub(super) fn inside(namespace: NamespaceThread) -> Self {
        Self(Some(Arc::new(namespace)))
    }

    /// Does a job there and waits for it: for what takes no time, like making a socket or starting a process.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
        match &self.0 {
            None => Ok(job()),
            Some(namespace) => namespace.run(job),
        }
    }

    /// A command to be started there by [`Self::run`]. In a namespace its process has its own id as ever, and is killed
    /// when the namespace ends, also by the lab's own death: no other process could reach it any
    /// more.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        if self.0.is_none() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program);
        command
    }

    /// Ends the namespace, if it is one.
    pub(super) fn end(&self) {
        if let Some(namespace) = &self.0 {
            namespace.end();
        }
    }
}
