//! What is done to a system under test, and when: drawn from a seed, so that a run can be repeated.
//!
//! Pure. A fault begins, lasts, and ends; several may last at once. Which of the agents or schedulers it befalls is a drawn
//! number that the injector takes modulo those that can be befallen then.

use std::time::Duration;

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::chaos::judge::recovery::{AGENT_KILL, SCHEDULER_KILL};

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// kill -9 of an agent, started again when it ends.
    AgentKill,
    /// SIGSTOP and SIGCONT of an agent.
    AgentStop,
    /// An agent is stopped in order and runs an older build until it ends.
    AgentOld,
    /// A second process with an agent's credential.
    Twin,
    /// An operator drains an agent, and takes it back into service.
    Drain,
    /// An agent's disk is full.
    DiskFull,
    /// An agent's wall clock is an hour off.
    ClockShift,
    /// Nothing passes between an agent and anybody; rootless, between it and the schedulers.
    CutBoth,
    /// Nothing passes from an agent, likewise.
    CutUp,
    /// Nothing passes to an agent, likewise.
    CutDown,
    /// An agent's streams break several times.
    Flap,
    /// Messages of an agent are late.
    Delay,
    /// Messages of an agent come twice.
    Duplicate,
    /// Messages of an agent wait on their way, and come in the end, whatever became of it meanwhile.
    HoldUp,
    /// Messages to an agent, likewise.
    HoldDown,
    /// kill -9 of a scheduler, started again when it ends.
    SchedulerKill,
    /// SIGSTOP and SIGCONT of a scheduler: another takes over, and both believe to be in charge when it goes on.
    SchedulerStop,
    /// The database is restarted in order.
    PostgresRestart,
    /// The database crashes and recovers.
    PostgresCrash,
    /// The database stands still.
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

    /// Its name in figures.
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

    /// How often it is drawn among all. What stops everybody is rarer, so that the others meet a system at work.
    const fn weight(self) -> u32 {
        match self {
            Self::PostgresRestart | Self::PostgresCrash | Self::PostgresStop => 1,
            Self::SchedulerKill | Self::SchedulerStop => 3,
            _ => 6,
        }
    }

    /// How long it lasts, in parts of a session's lifetime: up to beyond what an agent survives, but the database, without which
    /// nothing moves, is soon back.
    fn longest(self, longest: f64) -> f64 {
        match self {
            Self::PostgresRestart | Self::PostgresCrash | Self::PostgresStop => longest.min(0.4),
            _ => longest,
        }
    }

    /// Whether one agent suffers it.
    pub const fn befalls_an_agent(self) -> bool {
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

/// One fault to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub number: usize,
    pub kind: FaultKind,
    /// Whom, modulo those it can befall.
    pub target: usize,
    /// When, from the beginning of the faults.
    pub at: Duration,
    /// For how long.
    pub lasts: Duration,
}

/// What a schedule is drawn from.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    pub seed: u64,
    pub faults: usize,
    /// The mean time between the beginnings of two.
    pub interval: Duration,
    /// How long a session lives without a renewal.
    pub lifetime: Duration,
    /// How long a fault lasts at most, in lifetimes; 0.2 or more.
    pub longest: f64,
    /// Which kinds may be drawn.
    pub kinds: Vec<FaultKind>,
}

/// Draws the faults, in the order of their beginnings: every kind once in a shuffled round, then by weight.
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
    fn a_seed_draws_the_same_faults_and_every_kind_comes_early() {
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
