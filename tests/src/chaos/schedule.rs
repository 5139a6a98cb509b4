//! The schedule of faults, which is drawn from a seed, so that a run can be repeated. Faults have a
//! start and a duration, and can overlap. This module does no I/O.

use std::time::Duration;

use rand::rngs::ChaCha8Rng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use crate::chaos::judge::recovery::{AGENT_KILL, SCHEDULER_KILL};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// An agent is killed by `kill -9`, and restarted when the fault ends.
    AgentKill,
    /// An agent gets SIGSTOP, and SIGCONT when the fault ends.
    AgentStop,
    /// An agent runs as an older build until the fault ends.
    AgentOld,
    /// A second process runs with an agent's credential.
    Twin,
    /// An operator drains an agent, and resumes it when the fault ends.
    Drain,
    /// An agent's disk is full.
    DiskFull,
    /// An agent's wall clock is an hour behind.
    ClockShift,
    /// All packets to and from an agent are lost. In the rootless grade, messages between the agent
    /// and the schedulers are held.
    CutBoth,
    /// Like `CutBoth`, but only packets from an agent are lost.
    CutUp,
    /// Like `CutBoth`, but only packets to an agent are lost.
    CutDown,
    /// The streams between an agent and the schedulers break several times.
    Flap,
    /// Messages to and from an agent are delayed.
    Delay,
    /// Messages to and from an agent are duplicated.
    Duplicate,
    /// Messages from an agent are held, and are delivered when the fault ends, even if the agent
    /// has reconnected or restarted in the meantime.
    HoldUp,
    /// Like `HoldUp`, but messages to an agent are held.
    HoldDown,
    /// A scheduler is killed by `kill -9`, and restarted when the fault ends.
    SchedulerKill,
    /// A scheduler gets SIGSTOP, and another scheduler becomes leader. After SIGCONT, both
    /// schedulers believe that they are the leader.
    SchedulerStop,
    /// The database is restarted.
    PostgresRestart,
    /// The database crashes and recovers.
    PostgresCrash,
    /// All processes of the database get SIGSTOP, and SIGCONT when the fault ends.
    PostgresStop,
    /// The database accepts no changes, as during a failover.
    PostgresReadOnly,
    /// Each commit waits for a slow disk.
    PostgresSlow,
    /// All connections to the database are ended.
    PostgresEnd,
    /// Only the connections over which schedulers watch the database are ended.
    WatcherEnd,
    /// Rows are locked by hand until the fault ends.
    RowsLocked,
    /// The database's disk is full.
    PostgresDiskFull,
    /// The database's clock jumps forwards or backwards by at most ten minutes, and jumps back when
    /// the fault ends.
    PostgresClock,
}

impl FaultKind {
    pub const ALL: [Self; 27] = [
        Self::AgentKill,
        Self::AgentStop,
        Self::AgentOld,
        Self::Twin,
        Self::Drain,
        Self::DiskFull,
        Self::ClockShift,
        Self::CutBoth,
        Self::CutUp,
        Self::CutDown,
        Self::Flap,
        Self::Delay,
        Self::Duplicate,
        Self::HoldUp,
        Self::HoldDown,
        Self::SchedulerKill,
        Self::SchedulerStop,
        Self::PostgresRestart,
        Self::PostgresCrash,
        Self::PostgresStop,
        Self::PostgresReadOnly,
        Self::PostgresSlow,
        Self::PostgresEnd,
        Self::WatcherEnd,
        Self::RowsLocked,
        Self::PostgresDiskFull,
        Self::PostgresClock,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::AgentKill => AGENT_KILL,
            Self::AgentStop => "agent_stop",
            Self::AgentOld => "agent_old",
            Self::Twin => "twin",
            Self::Drain => "drain",
            Self::DiskFull => "disk_full",
            Self::ClockShift => "clock_shift",
            Self::CutBoth => "cut_both",
            Self::CutUp => "cut_up",
            Self::CutDown => "cut_down",
            Self::Flap => "flap",
            Self::Delay => "delay",
            Self::Duplicate => "duplicate",
            Self::HoldUp => "hold_up",
            Self::HoldDown => "hold_down",
            Self::SchedulerKill => SCHEDULER_KILL,
            Self::SchedulerStop => "scheduler_stop",
            Self::PostgresRestart => "postgres_restart",
            Self::PostgresCrash => "postgres_crash",
            Self::PostgresStop => "postgres_stop",
            Self::PostgresReadOnly => "postgres_read_only",
            Self::PostgresSlow => "postgres_slow",
            Self::PostgresEnd => "postgres_end",
            Self::WatcherEnd => "watcher_end",
            Self::RowsLocked => "rows_locked",
            Self::PostgresDiskFull => "postgres_disk_full",
            Self::PostgresClock => "postgres_clock",
        }
    }

    /// Relative frequency of the kind. Faults of schedulers and the database are rarer, so that
    /// other faults hit a working system.
    const fn weight(self) -> u32 {
        match self {
            kind if kind.affects_the_database() => 1,
            Self::SchedulerKill | Self::SchedulerStop => 3,
            _ => 6,
        }
    }

    /// Maximum duration in session lifetimes. Faults of the database are shorter, because without
    /// the database no part of the system works.
    fn longest(self, longest: f64) -> f64 {
        match self {
            kind if kind.affects_the_database() => longest.min(0.4),
            _ => longest,
        }
    }

    pub const fn affects_an_agent(self) -> bool {
        !self.affects_the_database() && !matches!(self, Self::SchedulerKill | Self::SchedulerStop)
    }

    pub const fn affects_the_database(self) -> bool {
        matches!(
            self,
            Self::PostgresRestart
                | Self::PostgresCrash
                | Self::PostgresStop
                | Self::PostgresReadOnly
                | Self::PostgresSlow
                | Self::PostgresEnd
                | Self::WatcherEnd
                | Self::RowsLocked
                | Self::PostgresDiskFull
                | Self::PostgresClock
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub number: usize,
    pub kind: FaultKind,
    /// A random number. The target is this number modulo the number of possible targets.
    pub target: usize,
    /// Time from the start of the run to the beginning of the fault.
    pub at: Duration,
    pub lasts: Duration,
}

#[derive(Debug, Clone)]
pub struct FaultPlan {
    pub seed: u64,
    pub faults: usize,
    /// Mean time between the beginnings of two faults.
    pub interval: Duration,
    /// The lifetime of a session without heartbeats.
    pub lifetime: Duration,
    /// Maximum duration of a fault, as a multiple of `lifetime`; at least 0.2.
    pub longest: f64,
    pub kinds: Vec<FaultKind>,
}

/// Draws the faults, in the order in which they begin. First every kind occurs once, in random
/// order; then kinds are drawn by weight.
pub fn draw(plan: &FaultPlan) -> Vec<Fault> {
    let mut rng = ChaCha8Rng::seed_from_u64(plan.seed);
    let mut at = Duration::ZERO;
    let mut faults = Vec::with_capacity(plan.faults);
    let mut round = plan.kinds.clone();
    for number in 0..plan.faults {
        at += plan.interval.mul_f64(rng.random_range(0.0..2.0));
        let kind = if round.is_empty() {
            plan.kinds.choose_weighted(&mut rng, |kind| kind.weight()).copied().ok()
        } else {
            Some(round.swap_remove(rng.random_range(0..round.len())))
        };
        let Some(kind) = kind else { break };
        let target = rng.random_range(0..1 << 20);
        let lasts = plan.lifetime.mul_f64(rng.random_range(0.1..kind.longest(plan.longest)));
        faults.push(Fault { number, kind, target, at, lasts });
    }
    faults
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_seed_determines_the_faults_and_every_kind_comes_early() {
        let plan = FaultPlan {
            seed: 7,
            faults: 60,
            interval: Duration::from_millis(300),
            lifetime: Duration::from_millis(3500),
            longest: 1.4,
            kinds: FaultKind::ALL.to_vec(),
        };
        let faults = draw(&plan);
        assert_eq!(faults, draw(&plan));
        assert_ne!(faults, draw(&FaultPlan { seed: 8, ..plan.clone() }));
        let early: BTreeSet<FaultKind> = faults[..FaultKind::ALL.len()].iter().map(|fault| fault.kind).collect();
        assert_eq!(early.len(), FaultKind::ALL.len());
        assert!(faults.is_sorted_by_key(|fault| fault.at));
        let (shortest, longest) = (plan.lifetime / 10, plan.lifetime * 3 / 2);
        assert!(faults.iter().all(|fault| (shortest..longest).contains(&fault.lasts)));
        assert!(draw(&FaultPlan { kinds: Vec::new(), ..plan }).is_empty());
    }
}
