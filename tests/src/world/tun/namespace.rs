//! A network namespace that the lab created, with its kernel settings, TUN device, addresses and
//! routes. A thread in the namespace executes jobs. This module also tries whether this machine can
//! run the tun grade.
//!
//! A socket belongs to the namespace of the thread that created it, and a process to the namespace
//! of the thread that started it. Afterwards, any thread can use the socket or the process. The
//! namespace has no name in the file system, so the kernel removes it with its last thread, process
//! and socket. A killed lab therefore leaves no namespace behind.

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context, anyhow, ensure};
use nix::sched::{CloneFlags, unshare};
use tokio::process::Command;
use tokio::runtime::Handle;
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::world::addresses::Lane;

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

const TUN: &str = "/dev/net/tun";
/// The name of the TUN device in every namespace.
const NAME: &str = "wan";
/// Maximum size of a packet in bytes, as on Ethernet.
pub(super) const MTU: usize = 1500;
/// Maximum number of packets that wait for the router. A burst would overflow the default of 500,
/// but only the scenario's rules may cause losses.
const QUEUE: u32 = 20_000;

/// The addresses of a namespace.
#[derive(Debug, Clone)]
pub(super) enum Addresses {
    One(Ipv4Addr),
    /// All addresses in these networks, written as `address/bits`.
    All(Vec<String>),
}

/// Creates the device, addresses and routes of a namespace, and writes its kernel settings.
pub(super) fn set_up(namespace: &NetNamespace, addresses: Addresses) -> anyhow::Result<SyncDevice> {
    // The device file is checked first, because opening a missing file could create an ordinary
    // file.
    ensure!(Path::new(TUN).exists(), "there is no {TUN}");
    namespace.run(move || {
        write_kernel_settings()?;
        let device = DeviceBuilder::new().name(NAME).enable(false).build_sync().context("make a TUN device")?;
        device.set_nonblocking(true).context("make the TUN device answer at once")?;
        ip(&commands(&addresses))?;
        Ok(device)
    })?
}

fn commands(addresses: &Addresses) -> String {
    let mut lines = format!("link set dev lo up\nlink set dev {NAME} txqueuelen {QUEUE} mtu {MTU} up\n");
    match addresses {
        Addresses::One(address) => lines.push_str(&format!("addr add {address}/32 dev {NAME}\n")),
        Addresses::All(networks) => {
            for network in networks {
                lines.push_str(&format!("route add local {network} dev lo\n"));
            }
        }
    }
    lines.push_str(&format!("route add default dev {NAME}\n"));
    lines
}

/// Runs `ip` (iproute2) in batch mode, with one command per line.
fn ip(lines: &str) -> anyhow::Result<()> {
    let mut child = std::process::Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("run ip, of the Debian package iproute2")?;
    // Writing does not block, because the lines fit into the buffer of the pipe.
    child.stdin.take().context("talk to ip")?.write_all(lines.as_bytes()).context("talk to ip")?;
    let output = child.wait_with_output().context("wait for ip")?;
    ensure!(output.status.success(), "ip: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Settings in every namespace, as paths below /proc/sys/net. A setting that the kernel does not
/// have is skipped.
const KERNEL_SETTINGS: [(&str, &str); 6] = [
    // Scenarios have no IPv6. With IPv6, the router would have to carry packets of neighbour
    // discovery.
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
    // A connection must not reuse metrics of earlier connections, because runs would then influence
    // each other.
    ("ipv4/tcp_no_metrics_save", "1"),
    // Processes may send ICMP echo requests without root.
    ("ipv4/ping_group_range", "0 2147483647"),
    // In the agents' namespaces, the lab listens on the schedulers' ports, which come from the
    // host's range of ephemeral ports (by default 32768 to 60999). So the ephemeral ports of a
    // namespace must be lower.
    ("ipv4/ip_local_port_range", "1024 32767"),
    // Reverse path filtering is useless, because there is only one route.
    ("ipv4/conf/all/rp_filter", "0"),
];

/// Writes the settings of the calling thread's namespace.
fn write_kernel_settings() -> anyhow::Result<()> {
    KERNEL_SETTINGS.iter().try_for_each(|(setting, value)| write_setting(setting, value))
}

fn write_setting(setting: &str, value: &str) -> anyhow::Result<()> {
    let file = Path::new("/proc/sys/net").join(setting);
    match fs::write(&file, value) {
        // A kernel without IPv6 does not have the settings of IPv6.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        written => written.with_context(|| format!("write {value} to {}", file.display())),
    }
}

pub(super) const NEEDS: &str = "the tun grade takes root, /dev/net/tun and iproute2";

/// Why this machine does not support the tun grade; `None` if it does.
pub fn missing() -> Option<String> {
    let tried = || {
        let namespace = NetNamespace::inside(NamespaceThread::start("wan-trial")?);
        set_up(&namespace, Addresses::One(Lane::TUN.agent(0))).map(|_| ())
    };
    tried().err().map(|error: anyhow::Error| format!("{NEEDS}: {error:#}"))
}
