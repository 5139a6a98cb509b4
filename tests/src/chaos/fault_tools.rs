//! Prepares the tools that faults need: proxies, shiftable clocks, small disks that the lab can
//! fill, and second processes with an agent's credential. This module also determines which faults
//! this machine supports.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::args::ChaosArgs;
use super::proxy::StreamProxy;
use super::schedule::FaultKind;
use crate::cluster::Cluster;
use crate::cluster::process::Process;
use crate::cluster::scheduler::SchedulerNode;
use crate::world::{Grade, tun};

/// Number of slots of each agent.
pub(super) const CAPACITY: u32 = 5;
/// Possible locations of libfaketime.
const FAKETIME: [&str; 2] =
    ["/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1"];
/// Environment variable that is set if the mounts of this process are private.
const PRIVATE: &str = "LANDFALL_LAB_PRIVATE_MOUNTS";

/// The tools, other than the cluster, that inject faults.
#[derive(Debug)]
pub struct FaultTools {
    /// The proxies of each agent: one per scheduler.
    pub proxies: Vec<Vec<StreamProxy>>,
    /// The disks of the agents' outboxes; `None` if mounting is not permitted.
    pub disks: Option<SmallDisks>,
    /// The file that shifts the wall clock of each agent; `None` if the clock cannot be shifted.
    pub clocks: Vec<Option<PathBuf>>,
    /// The binary of an older build; `None` if `--old-agent` is not given.
    pub old_agent: Option<PathBuf>,
    pub twins: AgentCopies,
}

/// Restarts this program in a private mount namespace, if that is permitted. The kernel then
/// removes the program's mounts when the program ends, even after a crash.
pub fn have_private_mounts() {
    if !nix::unistd::geteuid().is_root() || std::env::var_os(PRIVATE).is_some() {
        return;
    }
    let Ok(own) = std::env::current_exe() else { return };
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "--propagation", "private"]).arg(own).args(std::env::args_os().skip(1)).env(PRIVATE, "1");
    // `exec` returns only if it fails. Without private mounts, the mounts remain after a crash of
    // the lab.
    let error = command.exec();
    tracing::warn!(%error, "no private mounts");
}

/// Enrols the agents, starts their proxies, and prepares disks and clocks.
pub(super) async fn tools(
    args: &ChaosArgs,
    kinds: &[FaultKind],
    cluster: &mut Cluster,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> anyhow::Result<FaultTools> {
    cluster.enrol_all(CAPACITY).await?;
    let schedulers: Vec<_> = cluster.schedulers.iter().map(SchedulerNode::address).collect();
    let agents = cluster.world.scenario().agents.len();
    let mut proxies = Vec::with_capacity(agents);
    for index in 0..agents {
        let mut own_proxies = Vec::with_capacity(schedulers.len());
        for scheduler in &schedulers {
            let proxy = StreamProxy::start(*scheduler, tasks, shutdown).await?;
            cluster.world.forward(proxy.port())?;
            own_proxies.push(proxy);
        }
        // Each agent tries the schedulers in a different order.
        let turn = index % own_proxies.len();
        own_proxies.rotate_left(turn);
        let outbox = toml::Table::from_iter([(
            "min_free_bytes".to_owned(),
            i64::try_from(MIN_FREE_BYTES).context("bytes")?.into(),
        )]);
        cluster.configure_agent(index, |config| {
            config.insert("scheduler".to_owned(), urls(&own_proxies).into());
            config.insert("outbox".to_owned(), outbox.into());
            Ok(())
        })?;
        proxies.push(own_proxies);
    }
    let disks = match kinds.contains(&FaultKind::DiskFull) {
        true => {
            let folders = (0..agents).map(|index| cluster.agent_folder(index).join("outbox")).collect();
            Some(SmallDisks::mount(folders, OUTBOX_BYTES)?)
        }
        false => None,
    };
    let everybody = args.only.iter().any(|kind| kind == FaultKind::ClockShift.name());
    let clocks = (0..agents).map(|index| clock(kinds, cluster, index, everybody)).collect::<anyhow::Result<_>>()?;
    let twins = AgentCopies::new(cluster.folder().join("twins"));
    Ok(FaultTools { proxies, disks, clocks, old_agent: args.old_agent.clone(), twins })
}

/// The URLs at which an agent reaches the schedulers through its proxies.
pub(super) fn urls(own_proxies: &[StreamProxy]) -> Vec<String> {
    own_proxies.iter().map(StreamProxy::url).collect()
}

/// Makes the wall clock of an agent shiftable, and returns the file with the shift. If `everybody`
/// is false, only the clock of every third agent is made shiftable.
fn clock(kinds: &[FaultKind], cluster: &mut Cluster, index: usize, everybody: bool) -> anyhow::Result<Option<PathBuf>> {
    let Some(library) =
        faketime().filter(|_| kinds.contains(&FaultKind::ClockShift) && (everybody || index.is_multiple_of(3)))
    else {
        return Ok(None);
    };
    let file = cluster.folder().join(format!("clock-{index}"));
    std::fs::write(&file, "+0\n").with_context(|| format!("write {}", file.display()))?;
    let named = file.to_string_lossy().into_owned();
    let environment = [
        ("LD_PRELOAD", library),
        ("FAKETIME_TIMESTAMP_FILE", &named),
        ("FAKETIME_CACHE_DURATION", "1"),
        // Do not shift the boot clock, because all processes must agree on it.
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
    ];
    let owned = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
    cluster.environment.insert(index, owned.to_vec());
    Ok(Some(file))
}

fn faketime() -> Option<&'static str> {
    FAKETIME.into_iter().find(|library| Path::new(library).exists())
}

impl ChaosArgs {
    /// The requested grade. The default is the tun grade if this machine supports it.
    pub(super) fn grade(&self, quiet: bool) -> Grade {
        let missing = || match tun::missing() {
            Some(missing) => {
                if !quiet {
                    println!("  rootless, so that cuts are of messages, not of packets: {missing}");
                }
                Grade::Rootless
            }
            None => Grade::Tun,
        };
        self.grade.unwrap_or_else(missing)
    }

    /// The requested kinds of faults that this machine supports. For each other requested kind, the
    /// function prints why this machine does not support it, unless `quiet` is true.
    pub(super) fn kinds(&self, quiet: bool) -> anyhow::Result<Vec<FaultKind>> {
        let known: BTreeMap<&str, FaultKind> = FaultKind::ALL.iter().map(|kind| (kind.name(), *kind)).collect();
        let mut asked = Vec::new();
        for name in &self.only {
            let Some(kind) = known.get(name.as_str()) else {
                let names: Vec<&str> = known.keys().copied().collect();
                bail!("--only: '{name}' is no kind of fault; there are {}", names.join(", "));
            };
            asked.push(*kind);
        }
        let root = nix::unistd::geteuid().is_root();
        let mut kinds = if asked.is_empty() { FaultKind::ALL.to_vec() } else { asked };
        kinds.retain(|kind| {
            let missing = match kind {
                FaultKind::DiskFull if !root => Some("only root can mount small disks"),
                FaultKind::ClockShift if faketime().is_none() => Some("libfaketime is not installed"),
                FaultKind::AgentOld if self.old_agent.is_none() => Some("--old-agent is not given"),
                FaultKind::SchedulerStop if self.schedulers < 2 => Some("there is one scheduler alone"),
                _ => None,
            };
            if let Some(missing) = missing.filter(|_| !quiet) {
                println!("  left out: {} ({missing})", kind.name());
            }
            missing.is_none()
        });
        ensure!(!kinds.is_empty() || self.faults == 0, "none of the kinds of fault can be injected here");
        Ok(kinds)
    }
}

/// Size of an outbox's disk, in bytes. The disk has room for thousands of outcomes.
const OUTBOX_BYTES: usize = 4 << 20;
/// The agents' setting `min_free_bytes`. If less space is free, an agent accepts no lease.
const MIN_FREE_BYTES: usize = 512 << 10;
const BALLAST: &str = "ballast";

#[derive(Debug)]
pub struct SmallDisks {
    folders: Vec<PathBuf>,
}

impl SmallDisks {
    /// Mounts a disk of `bytes` bytes at each folder. Mounting needs root.
    pub fn mount(folders: Vec<PathBuf>, bytes: usize) -> anyhow::Result<Self> {
        let mut disks = Self { folders: Vec::new() };
        for folder in folders {
            std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
            let size = format!("size={bytes}");
            run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs"], &folder)?;
            disks.folders.push(folder);
        }
        Ok(disks)
    }

    pub fn fill(&self, index: usize) -> anyhow::Result<()> {
        let file = self.folders[index].join(BALLAST);
        let mut ballast = File::create(&file).with_context(|| format!("make {}", file.display()))?;
        let block = [0_u8; 4096];
        loop {
            match ballast.write(&block) {
                Ok(_) => {}
                Err(full) if full.kind() == ErrorKind::StorageFull => return Ok(()),
                Err(error) => return Err(error).with_context(|| format!("write {}", file.display())),
            }
        }
    }

    pub fn free(&self, index: usize) -> anyhow::Result<()> {
        let file = self.folders[index].join(BALLAST);
        std::fs::remove_file(&file).with_context(|| format!("remove {}", file.display()))
    }
}

impl Drop for SmallDisks {
    fn drop(&mut self) {
        for folder in &self.folders {
            // Unmount lazily, because an agent that is ending may still have a file open.
            if let Err(error) = run("umount", &["--lazy"], folder) {
                tracing::warn!(%error, "a small disk stays mounted");
            }
        }
    }
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> anyhow::Result<()> {
    let output =
        Command::new(program).args(arguments).arg(folder).output().with_context(|| format!("run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", folder.display(), said.trim());
    Ok(())
}

#[derive(Debug)]
pub struct AgentCopies {
    folder: PathBuf,
    running: BTreeMap<usize, Process>,
}

impl AgentCopies {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, running: BTreeMap::new() }
    }

    /// Copies an agent's credential, and starts a second process with it.
    pub fn begin(&mut self, cluster: &Cluster, agent: usize) -> anyhow::Result<()> {
        let (original, copy) = (cluster.agent_folder(agent), self.folder.join(agent.to_string()));
        copy_settings(&original, &copy).with_context(|| format!("copy {}", original.display()))?;
        let twin = cluster.spawn_agent_in(agent, &copy, "twin")?;
        self.running.insert(agent, twin);
        Ok(())
    }

    pub async fn end(&mut self, agent: usize) -> anyhow::Result<()> {
        match self.running.remove(&agent) {
            Some(mut twin) => twin.kill().await,
            None => Ok(()),
        }
    }
}

/// Copies the credential and the configuration. The copy has no beacon, because the original agent
/// uses the port of the beacon.
fn copy_settings(original: &Path, copy: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(copy)?;
    for entry in std::fs::read_dir(original)? {
        let entry = entry?;
        if entry.file_type()?.is_file() && entry.file_name() != "agent.toml" {
            std::fs::copy(entry.path(), copy.join(entry.file_name()))?;
        }
    }
    let text = std::fs::read_to_string(original.join("agent.toml"))?;
    let mut config: toml::Table = text.parse()?;
    let beacon = toml::Table::from_iter([("enabled".to_owned(), false.into())]);
    config.insert("beacon".to_owned(), beacon.into());
    std::fs::write(copy.join("agent.toml"), toml::to_string(&config)?)?;
    Ok(())
}
