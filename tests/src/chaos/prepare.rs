//! Prepares the proxies, small disks and shiftable clocks that faults need. This module also
//! determines which faults this machine supports.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::args::ChaosArgs;
use super::disks::{self, SmallDisks};
use super::proxy::StreamProxy;
use super::schedule::FaultKind;
use super::twins::AgentCopies;
use crate::cluster::Cluster;
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
            i64::try_from(disks::MIN_FREE_BYTES).context("bytes")?.into(),
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
            Some(SmallDisks::mount(folders, disks::OUTBOX_BYTES)?)
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
