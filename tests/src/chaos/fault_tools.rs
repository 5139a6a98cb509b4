//! Prepares the tools that faults need: proxies, shiftable clocks, small disks that the lab can
//! fill, and second processes with an agent's credential. This module also determines which faults
//! this machine supports.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::args::ChaosArgs;
use super::proxy::StreamProxy;
use super::schedule::FaultKind;
use crate::cluster::Cluster;
use crate::cluster::process::Process;
use crate::cluster::scheduler::SchedulerNode;
use crate::cluster::shifted_clock::ShiftedClock;
use crate::cluster::small_disks::SmallDisks;
use crate::world::{Grade, tun};

/// Number of slots of each agent.
pub(super) const CAPACITY: u32 = 5;
/// Environment variable that is set if the mounts of this process are private.
const PRIVATE: &str = "LANDFALL_LAB_PRIVATE_MOUNTS";

/// The tools, other than the cluster, that inject faults.
#[derive(Debug)]
pub struct FaultTools {
    /// The proxies of each agent: one per scheduler.
    pub proxies: Vec<Vec<StreamProxy>>,
    /// The disks of the agents' outboxes; `None` if mounting is not permitted.
    pub disks: Option<SmallDisks>,
    /// The wall clock of each agent; `None` if it cannot be shifted.
    pub clocks: Vec<Option<ShiftedClock>>,
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

/// Makes the wall clock of an agent shiftable. If `everybody` is false, only the clock of every
/// third agent is made shiftable.
fn clock(
    kinds: &[FaultKind],
    cluster: &mut Cluster,
    index: usize,
    everybody: bool,
) -> anyhow::Result<Option<ShiftedClock>> {
    if !kinds.contains(&FaultKind::ClockShift) || !(everybody || index.is_multiple_of(3)) {
        return Ok(None);
    }
    let clock = ShiftedClock::new(cluster.folder().join(format!("clock-{index}")))?;
    cluster.environment.insert(index, clock.environment()?);
    Ok(Some(clock))
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
                FaultKind::DiskFull | FaultKind::PostgresDiskFull if !root => Some("only root can mount small disks"),
                FaultKind::ClockShift | FaultKind::PostgresClock => ShiftedClock::missing(),
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
const OUTBOX_BYTES: u64 = 4 << 20;
/// The agents' setting `min_free_bytes`. If less space is free, an agent accepts no lease.
const MIN_FREE_BYTES: usize = 512 << 10;

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
