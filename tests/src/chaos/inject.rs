//! Executes a schedule of faults on a cluster, one action at a time. Each fault is healed at its
//! end.
//!
//! A fault begins when its time has come and a target has no conflicting fault. Faults that affect
//! only messages do not conflict with any fault. Two faults of other kinds conflict if they affect
//! the same process.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::sys::signal::{Signal, kill};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::fault_tools::{self, FaultTools};
use super::proxy::{DirectionRules, ProxyRules, StreamProxy};
use super::schedule::{Fault, FaultKind};
use crate::cluster::Cluster;
use crate::cluster::postgres::DatabaseAction;
use crate::world::tun::CutDirection;

/// How many times a stream breaks during one fault of kind `Flap`.
const FLAPS: u32 = 4;
/// Time between two attempts of an operator's command.
const REST: Duration = Duration::from_millis(200);
/// Maximum delay of messages in milliseconds.
const MOST_DELAY_MS: u64 = 1500;
/// How far an agent's wall clock is shifted, in seconds. The shift is longer than any lease.
const SHIFTED: i64 = -3600;
/// Minimum and maximum shift of the database's clock, in seconds.
const DATABASE_SHIFTED: Range<i64> = 5..600;

#[derive(Debug, Clone, Copy)]
pub struct InjectedFault {
    pub fault: Fault,
    /// The index of the affected agent or scheduler.
    pub target: usize,
    pub from: Instant,
    /// `None` while the fault lasts.
    pub to: Option<Instant>,
}

/// Number of active faults of each kind that affect the messages of one agent.
#[derive(Debug, Clone, Copy, Default)]
struct WireFaults {
    cut_up: u32,
    cut_down: u32,
    held_up: u32,
    held_down: u32,
    late: u32,
    twice: u32,
    late_by: Duration,
}

#[derive(Debug)]
pub struct Injector {
    start: Instant,
    waiting: VecDeque<Fault>,
    /// Active faults. The key is the time when the fault ends, and the fault's number.
    lasting: BTreeMap<(Instant, usize), InjectedFault>,
    /// Ended faults, in the order in which they ended.
    pub done: Vec<InjectedFault>,
    tools: FaultTools,
    wires: Vec<WireFaults>,
    agents_busy: Vec<bool>,
    schedulers_busy: Vec<bool>,
    postgres_busy: bool,
    /// Scheduled breaks of streams: the time of the break, and the index of the agent.
    flaps: Vec<(Instant, usize)>,
    commands: CommandQueue,
}

/// The target of a command. Commands for the same target run in the order in which they were
/// queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CommandTarget {
    Database,
    Agent(usize),
}

/// Slow actions in the background: operators' commands, and actions on the database.
#[derive(Debug, Default)]
struct CommandQueue {
    running: JoinSet<anyhow::Result<()>>,
    /// For each target, a receiver whose sender is dropped when the target's newest command ends.
    newest: BTreeMap<CommandTarget, oneshot::Receiver<()>>,
}

impl CommandQueue {
    /// Runs a command after all earlier commands for the same target. For example, an agent must
    /// not be resumed before it is drained.
    fn enqueue<F>(&mut self, target: CommandTarget, command: F)
    where
        F: Future<Output = anyhow::Result<()>> + Send + 'static,
    {
        let (ended, end) = oneshot::channel();
        let earlier = self.newest.insert(target, end);
        self.running.spawn(async move {
            if let Some(earlier) = earlier {
                // The result is always an error, because the earlier command sends nothing and
                // drops its sender when it ends.
                let _ = earlier.await;
            }
            let _ended = ended;
            command.await
        });
    }
}

impl Injector {
    pub fn new(faults: Vec<Fault>, tools: FaultTools, cluster: &Cluster) -> Self {
        let agents = tools.proxies.len();
        Self {
            start: Instant::now(),
            waiting: faults.into(),
            lasting: BTreeMap::new(),
            done: Vec::new(),
            tools,
            wires: vec![WireFaults::default(); agents],
            agents_busy: vec![false; agents],
            schedulers_busy: vec![false; cluster.schedulers.len()],
            postgres_busy: false,
            flaps: Vec::new(),
            commands: CommandQueue::default(),
        }
    }

    pub fn proxies(&self) -> &[Vec<StreamProxy>] {
        &self.tools.proxies
    }

    /// Number of faults that have begun.
    pub fn begun(&self) -> usize {
        self.done.len() + self.lasting.len()
    }

    pub fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.lasting.is_empty()
    }

    /// Drops the faults that have not begun yet.
    pub fn cut_short(&mut self) {
        self.waiting.clear();
    }

    /// Begins and ends the faults whose time has come. Returns the time at which the caller must
    /// call this function again.
    pub async fn step(&mut self, cluster: &mut Cluster) -> anyhow::Result<Instant> {
        let now = Instant::now();
        while let Some(entry) = self.lasting.first_entry().filter(|entry| entry.key().0 <= now) {
            let mut ended = entry.remove();
            self.end(cluster, &ended).await.with_context(|| format!("end {}", ended.fault.kind.name()))?;
            ended.to = Some(Instant::now());
            self.done.push(ended);
        }
        let proxies = &self.tools.proxies;
        self.flaps.retain(|(at, agent)| {
            let due = *at <= now;
            if due {
                proxies[*agent].iter().for_each(StreamProxy::break_streams);
            }
            !due
        });
        while let Some(fault) = self.waiting.front().copied().filter(|fault| self.start + fault.at <= now) {
            let Some(target) = self.target(fault) else { break };
            self.waiting.pop_front();
            let from = Instant::now();
            self.begin(cluster, fault, target).await.with_context(|| format!("begin {}", fault.kind.name()))?;
            self.lasting.insert((from + fault.lasts, fault.number), InjectedFault { fault, target, from, to: None });
        }
        while let Some(ended) = self.commands.running.try_join_next() {
            ended.context("a command panicked")??;
        }
        let ends = self.lasting.first_key_value().map(|((at, _), _)| *at);
        let begins = self.waiting.front().map(|fault| self.start + fault.at);
        let soon = now + Duration::from_millis(20);
        Ok(ends.into_iter().chain(begins).min().unwrap_or(soon).clamp(soon, now + Duration::from_millis(200)))
    }

    fn target(&self, fault: Fault) -> Option<usize> {
        let free = |busy: &[bool]| {
            let count = busy.len();
            (0..count).map(|step| (fault.target + step) % count).find(|index| !busy[*index])
        };
        match fault.kind {
            kind if kind.affects_the_database() => (!self.postgres_busy).then_some(0),
            FaultKind::SchedulerKill | FaultKind::SchedulerStop => free(&self.schedulers_busy),
            _ if on_wire(fault.kind) => Some(fault.target % self.wires.len()),
            FaultKind::ClockShift => {
                let count = self.tools.clocks.len();
                let shiftable = |index: &usize| self.tools.clocks[*index].is_some() && !self.agents_busy[*index];
                (0..count).map(|step| (fault.target + step) % count).find(shiftable)
            }
            _ => free(&self.agents_busy),
        }
    }

    async fn begin(&mut self, cluster: &mut Cluster, fault: Fault, target: usize) -> anyhow::Result<()> {
        self.set_busy(fault.kind, target, true);
        match fault.kind {
            FaultKind::AgentKill => cluster.kill_agent(target).await,
            FaultKind::AgentStop => signal(cluster.agent(target).pid(), Signal::SIGSTOP),
            FaultKind::AgentOld => {
                cluster.kill_agent(target).await?;
                let binary = self.tools.old_agent.clone().context("there is no older build")?;
                // An old build accepts only one scheduler URL.
                self.reach(cluster, target, 1)?;
                cluster.restart_agent_as(target, &binary)
            }
            FaultKind::Twin => self.tools.twins.begin(cluster, target),
            FaultKind::Drain => self.operate(cluster, &["agents", "drain"], target),
            FaultKind::DiskFull => self.tools.disks.as_ref().map_or(Ok(()), |disks| disks.fill(target)),
            FaultKind::ClockShift => self.shift(target, SHIFTED),
            FaultKind::SchedulerKill => cluster.schedulers[target].process().kill().await,
            FaultKind::SchedulerStop => signal(cluster.schedulers[target].pid(), Signal::SIGSTOP),
            FaultKind::PostgresRestart => self.database(cluster, DatabaseAction::Restart),
            FaultKind::PostgresCrash => self.database(cluster, DatabaseAction::Crash),
            FaultKind::PostgresStop => self.database(cluster, DatabaseAction::Freeze(true)),
            FaultKind::PostgresReadOnly => self.database(cluster, DatabaseAction::ReadOnly(true)),
            FaultKind::PostgresSlow => self.database(cluster, DatabaseAction::SlowCommits(true)),
            FaultKind::PostgresEnd => self.database(cluster, DatabaseAction::EndConnections),
            FaultKind::WatcherEnd => self.database(cluster, DatabaseAction::EndWatchers),
            FaultKind::RowsLocked => self.database(cluster, DatabaseAction::LockRows(true)),
            FaultKind::PostgresDiskFull => self.database(cluster, DatabaseAction::FillDisk(true)),
            FaultKind::PostgresClock => self.database(cluster, DatabaseAction::ShiftClock(shift(fault.target)?)),
            FaultKind::Flap => {
                let (now, pause) = (Instant::now(), fault.lasts / FLAPS);
                self.flaps.extend((0..FLAPS).map(|flap| (now + pause * flap, target)));
                Ok(())
            }
            _ => self.on_wire(cluster, fault, target, true),
        }
    }

    async fn end(&mut self, cluster: &mut Cluster, done: &InjectedFault) -> anyhow::Result<()> {
        let (fault, target) = (done.fault, done.target);
        self.set_busy(fault.kind, target, false);
        match fault.kind {
            FaultKind::AgentKill => cluster.restart_agent(target),
            FaultKind::AgentStop => signal(cluster.agent(target).pid(), Signal::SIGCONT),
            FaultKind::AgentOld => {
                cluster.kill_agent(target).await?;
                self.reach(cluster, target, usize::MAX)?;
                cluster.restart_agent(target)
            }
            FaultKind::Twin => self.tools.twins.end(target).await,
            FaultKind::Drain => self.operate(cluster, &["agents", "resume"], target),
            FaultKind::DiskFull => self.tools.disks.as_ref().map_or(Ok(()), |disks| disks.free(target)),
            FaultKind::ClockShift => self.shift(target, 0),
            FaultKind::SchedulerKill => cluster.schedulers[target].restart(),
            FaultKind::SchedulerStop => signal(cluster.schedulers[target].pid(), Signal::SIGCONT),
            FaultKind::PostgresRestart | FaultKind::PostgresEnd | FaultKind::WatcherEnd | FaultKind::Flap => Ok(()),
            FaultKind::PostgresReadOnly => self.database(cluster, DatabaseAction::ReadOnly(false)),
            FaultKind::PostgresSlow => self.database(cluster, DatabaseAction::SlowCommits(false)),
            FaultKind::RowsLocked => self.database(cluster, DatabaseAction::LockRows(false)),
            FaultKind::PostgresDiskFull => self.database(cluster, DatabaseAction::FillDisk(false)),
            FaultKind::PostgresClock => self.database(cluster, DatabaseAction::ShiftClock(0)),
            FaultKind::PostgresCrash => self.database(cluster, DatabaseAction::Resume),
            FaultKind::PostgresStop => self.database(cluster, DatabaseAction::Freeze(false)),
            _ => self.on_wire(cluster, fault, target, false),
        }
    }

    fn set_busy(&mut self, kind: FaultKind, target: usize, busy: bool) {
        match kind {
            kind if kind.affects_the_database() => self.postgres_busy = busy,
            FaultKind::SchedulerKill | FaultKind::SchedulerStop => self.schedulers_busy[target] = busy,
            kind if on_wire(kind) => {}
            _ => self.agents_busy[target] = busy,
        }
    }

    fn on_wire(&mut self, cluster: &Cluster, fault: Fault, target: usize, begins: bool) -> anyhow::Result<()> {
        let wire = &mut self.wires[target];
        let count = |number: &mut u32| *number = if begins { *number + 1 } else { number.saturating_sub(1) };
        match fault.kind {
            FaultKind::CutBoth => {
                count(&mut wire.cut_up);
                count(&mut wire.cut_down);
            }
            FaultKind::CutUp => count(&mut wire.cut_up),
            FaultKind::CutDown => count(&mut wire.cut_down),
            FaultKind::HoldUp => count(&mut wire.held_up),
            FaultKind::HoldDown => count(&mut wire.held_down),
            FaultKind::Delay => {
                count(&mut wire.late);
                wire.late_by = Duration::from_millis(u64::try_from(fault.target)? % MOST_DELAY_MS);
            }
            _ => count(&mut wire.twice),
        }
        let wire = *wire;
        let packets = cluster.world.network();
        if let Some(network) = packets {
            match (wire.cut_up > 0, wire.cut_down > 0) {
                (false, false) => network.cuts().heal(target),
                (true, false) => network.cuts().cut(target, CutDirection::From),
                (false, true) => network.cuts().cut(target, CutDirection::Towards),
                (true, true) => network.cuts().cut(target, CutDirection::Both),
            }
        }
        let held = |held: u32, cut: u32| held > 0 || (cut > 0 && packets.is_none());
        let delay = if wire.late > 0 { wire.late_by } else { Duration::ZERO };
        let direction = |is_held, is_cut| DirectionRules { held: held(is_held, is_cut), delay, twice: wire.twice > 0 };
        let rules =
            ProxyRules { up: direction(wire.held_up, wire.cut_up), down: direction(wire.held_down, wire.cut_down) };
        self.tools.proxies[target].iter().for_each(|proxy| proxy.rule(rules));
        Ok(())
    }

    /// Executes an action on the database in the background, because it may take seconds.
    fn database(&mut self, cluster: &Cluster, action: DatabaseAction) -> anyhow::Result<()> {
        let shared = Arc::clone(cluster.postgres.as_ref().context("the schedulers share no database")?);
        self.commands.enqueue(CommandTarget::Database, async move { shared.lock().await.apply(action).await });
        Ok(())
    }

    /// Sends an operator's command to one scheduler after another until the command succeeds.
    fn operate(&mut self, cluster: &Cluster, words: &'static [&'static str], target: usize) -> anyhow::Result<()> {
        let name = cluster.world.scenario().agents[target].name.clone();
        let mut commands: Vec<_> = (0..cluster.schedulers.len()).map(|index| cluster.landfall_at(index)).collect();
        for command in &mut commands {
            command.args(words).arg(&name).stdout(Stdio::null()).stderr(Stdio::null());
        }
        self.commands.enqueue(CommandTarget::Agent(target), async move {
            for command in (0..commands.len()).cycle() {
                if commands[command].status().await.is_ok_and(|status| status.success()) {
                    break;
                }
                tokio::time::sleep(REST).await;
            }
            Ok(())
        });
        Ok(())
    }

    /// Writes the URLs of at most `most` schedulers into an agent's configuration. The change takes
    /// effect when the agent starts again.
    fn reach(&self, cluster: &Cluster, target: usize, most: usize) -> anyhow::Result<()> {
        let mut urls = fault_tools::urls(&self.tools.proxies[target]);
        urls.truncate(most);
        cluster.configure_agent(target, |config| {
            let scheduler = if most == 1 { urls.swap_remove(0).into() } else { urls.into() };
            config.insert("scheduler".to_owned(), scheduler);
            Ok(())
        })
    }

    fn shift(&self, target: usize, seconds: i64) -> anyhow::Result<()> {
        self.tools.clocks[target].as_ref().map_or(Ok(()), |clock| clock.shift(seconds))
    }

    /// Waits until all queued commands have ended. Fails if the database cannot be started.
    pub async fn settle(&mut self) -> anyhow::Result<()> {
        while let Some(ended) = self.commands.running.join_next().await {
            ended.context("a command panicked")??;
        }
        Ok(())
    }

    pub fn database_suffers(&self, cluster: &Cluster) -> bool {
        // An action on the database holds the lock on `cluster.postgres` until the action ends.
        self.postgres_busy || cluster.postgres.as_ref().is_some_and(|postgres| postgres.try_lock().is_err())
    }
}

/// A shift of the database's clock in seconds, forwards or backwards.
fn shift(random: usize) -> anyhow::Result<i64> {
    let random = i64::try_from(random)?;
    let seconds = DATABASE_SHIFTED.start + random / 2 % (DATABASE_SHIFTED.end - DATABASE_SHIFTED.start);
    Ok(if random % 2 == 0 { seconds } else { -seconds })
}

/// Whether the fault affects messages. Several faults that affect messages may be active at the
/// same time.
const fn on_wire(kind: FaultKind) -> bool {
    matches!(
        kind,
        FaultKind::CutBoth
            | FaultKind::CutUp
            | FaultKind::CutDown
            | FaultKind::HoldUp
            | FaultKind::HoldDown
            | FaultKind::Delay
            | FaultKind::Duplicate
            | FaultKind::Flap
    )
}

fn signal(pid: Option<nix::unistd::Pid>, signal: Signal) -> anyhow::Result<()> {
    let Some(pid) = pid else { return Ok(()) };
    kill(pid, signal).with_context(|| format!("send {signal} to {pid}"))
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn commands_for_one_target_run_in_order() {
        let mut commands = CommandQueue::default();
        let (note, mut noted) = mpsc::channel(4);
        let (open, gate) = oneshot::channel::<()>();
        let first = note.clone();
        commands.enqueue(CommandTarget::Database, async move {
            gate.await.context("the gate")?;
            first.send("stop").await.context("note")
        });
        let second = note.clone();
        commands.enqueue(CommandTarget::Database, async move { second.send("resume").await.context("note") });
        commands.enqueue(CommandTarget::Agent(0), async move { note.send("another subject").await.context("note") });
        assert_eq!(noted.recv().await, Some("another subject"));
        tokio::task::yield_now().await;
        assert!(noted.try_recv().is_err(), "the second waits for the first");
        open.send(()).expect("the first waits");
        assert_eq!((noted.recv().await, noted.recv().await), (Some("stop"), Some("resume")));
        while let Some(ended) = commands.running.join_next().await {
            ended.expect("no panic").expect("no error");
        }
    }
}
