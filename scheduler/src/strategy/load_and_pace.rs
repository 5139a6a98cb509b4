//! Defines the load level of an agent and its pace, the expected duration of its crawls, and
//! predicts from both when the agent's last task ends.
//!
//! Queues of different agents are compared by the time until the last task would end: the number of
//! crawls per slot, computed from the load level, times the agent's pace.
//!
//! The load level is defined as in section 1.4.1 of paper 003, which
//! docs/evaluation/load-levels.md describes. The paper counts blocks of pages, and Landfall counts
//! each task as one block.

use std::fmt;
use std::iter::Sum;
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

    pub(super) const fn plus(self, tasks: i64) -> Self {
        Self(self.0.saturating_add(tasks))
    }
}

impl fmt::Display for LoadLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:+}", self.0)
    }
}

/// Time until an agent's last task would end, if each crawl lasts as long as the agent's pace.
pub(super) fn last_ends(level: LoadLevel, capacity: u32, pace: Duration) -> Duration {
    let slots = u64::from(capacity.max(1));
    let turns = level.get().max(0).unsigned_abs().saturating_add(slots);
    let pace = u64::try_from(pace.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(pace.saturating_mul(turns) / slots)
}

/// Number of an agent's newest crawls from which its pace (their mean duration) is computed. If
/// sites differ greatly in size, the mean of twenty crawls has an error of about 15 %.
pub const CRAWLS_PACED: i64 = 20;
/// Maximum duration of a crawl in the computation of the pace. Longer crawls count as one day.
pub const LONGEST_MS: i64 = 86_400_000;
/// An agent's pace includes this many assumed crawls with the fleet's mean duration, so that a
/// single slow site does not make a new agent look slow.
const PRIOR_CRAWLS: u32 = 2;
/// The mean duration assumed before any crawl has ended.
const FIRST_PACE: Duration = Duration::from_secs(1);

/// Number and total duration of recent crawls, of one agent or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PastCrawls {
    pub count: u32,
    pub took: Duration,
}

impl PastCrawls {
    /// The pace of an agent with these crawls. `fleet` are the crawls of all agents.
    pub fn pace(self, fleet: Self) -> Duration {
        let usual = fleet.took.checked_div(fleet.count).unwrap_or(FIRST_PACE);
        (self.took + usual * PRIOR_CRAWLS) / self.count.saturating_add(PRIOR_CRAWLS)
    }
}

impl Sum for PastCrawls {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            count: sum.count.saturating_add(one.count),
            took: sum.took.saturating_add(one.took),
        })
    }
}
