//! The schedule of faults, drawn from a seed so that a run can be repeated.
//!
//! Pure. Faults have a start and a duration, and can overlap. The target is a random number that
//! the injector takes modulo the number of possible targets.

use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::chaos::judge::recovery::{AGENT_KILL, SCHEDULER_KILL};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// kill -9 of an agent, which is restarted when the fault ends.
    AgentKill,
    /// SIGSTOP and SIGCONT of an agent.
    AgentStop,
    /// An agent is replaced by an older build until the fault ends.
    AgentOld,
    /// A second process runs with an agent's credential.
    Twin,
    /// An operator drains an agent and resumes it later.
    Drain,
    /// An agent's disk is full.
    DiskFull,
    /// An agent's wall clock is wrong by an hour.
    ClockShift,
    /// All packets from and to an agent are lost; rootless, its messages with the schedulers are
    /// held.
    CutBoth,
    /// The same for packets from an agent.
    CutUp,
    /// The same for packets to an agent.
    CutDown,
    /// An agent's streams break several times.
    Flap,
    /// An agent's messages are delayed.
    Delay,
    /// An agent's messages are duplicated.
    Duplicate,
    /// Messages from an agent are held and delivered later, whatever happens to it meanwhile.
    HoldUp,
    /// The same for messages to an agent.
    HoldDown,
    /// kill -9 of a scheduler, which is restarted when the fault ends.
    SchedulerKill,
    /// SIGSTOP and SIGCONT of a scheduler: another one takes over, and after SIGCONT both act as
    /// leader.
    SchedulerStop,
    /// The database is restarted.
    PostgresRestart,
    /// The database crashes and recovers.
    PostgresCrash,
    /// The database is stopped and continued by signals.
    PostgresStop,
}

impl FaultKind {
    pub const ALL: [Self; 20] = [
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
    ];

    /// Its name in results.
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
        }
    }

    /// Its weight in the draw. Faults that stop everything are rarer, so that the others hit a
    /// working system.
    const fn weight(self) -> u32 {
        match self {
            Self::PostgresRestart | Self::PostgresCrash | Self::PostgresStop => 1,
            Self::SchedulerKill | Self::SchedulerStop => 3,
            _ => 6,
        }
    }

    /// The maximum duration in session lifetimes, so that some agents lose their session. The
    /// database is back soon, because nothing works without it.
    fn longest(self, longest: f64) -> f64 {
        match self {
            Self::PostgresRestart | Self::PostgresCrash | Self::PostgresStop => longest.min(0.4),
            _ => longest,
        }
    }

    /// Whether it affects one agent.
    pub const fn affects_an_agent(self) -> bool {
        !matches!(
            self,
            Self::SchedulerKill
                | Self::SchedulerStop
                | Self::PostgresRestart
                | Self::PostgresCrash
                | Self::PostgresStop
        )
    }
}

/// A scheduled fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub number: usize,
    pub kind: FaultKind,
    /// A random number, modulo the number of possible targets.
    pub target: usize,
    /// When it begins, from the start of the run.
    pub at: Duration,
    pub lasts: Duration,
}

/// The parameters of a schedule.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    pub seed: u64,
    pub faults: usize,
    /// The mean time between the beginnings of two faults.
    pub interval: Duration,
    /// The lifetime of a session without renewal.
    pub lifetime: Duration,
    /// The maximum duration of a fault in session lifetimes; 0.2 or more.
    pub longest: f64,
    pub kinds: Vec<FaultKind>,
}

/// Draws the faults in the order of their beginnings: every kind once in random order, then by
/// weight.
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
