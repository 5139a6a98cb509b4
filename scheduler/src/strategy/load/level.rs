//! Defines the load level of an agent, and predicts from it when the agent's last task ends.
//!
//! The load level is defined as in section 1.4.1 of paper 003, which
//! docs/evaluation/load-levels.md describes. The paper counts blocks of pages, and Landfall counts
//! each task as one block.

use std::fmt;
use std::time::Duration;

/// An agent's assigned and leased tasks minus its slots. A negative level is minus the number of
/// free slots. A positive level is the number of waiting tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LoadLevel(i64);

impl LoadLevel {
    /// The level of an agent with `capacity` slots and `load` assigned or leased tasks.
    pub fn of(load: u32, capacity: u32) -> Self {
        Self(i64::from(load) - i64::from(capacity))
    }

    /// Whether a newly assigned task begins at once.
    pub const fn has_room(self) -> bool {
        self.0 < 0
    }

    pub const fn get(self) -> i64 {
        self.0
    }

    pub(in crate::strategy) const fn plus(self, tasks: i64) -> Self {
        Self(self.0.saturating_add(tasks))
    }
}

impl fmt::Display for LoadLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:+}", self.0)
    }
}

/// Time until an agent's last task would end, if each crawl lasts as long as the agent's pace.
pub(in crate::strategy) fn last_ends(level: LoadLevel, capacity: u32, pace: Duration) -> Duration {
    let slots = u64::from(capacity.max(1));
    let turns = level.get().max(0).unsigned_abs().saturating_add(slots);
    let pace = u64::try_from(pace.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(pace.saturating_mul(turns) / slots)
}
