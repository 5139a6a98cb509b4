//! Orders the jobs planned for one agent, and computes when each begins and ends.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// A site to be crawled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// How long the crawl takes at each agent, in the order of the agents; `None` if the agent may
    /// not crawl the site.
    pub takes: Vec<Option<Duration>>,
    /// Whether the site's size is known. If not, `takes` assumes a typical size.
    pub sized: bool,
    /// How long the site has waited.
    pub waited: Duration,
}

impl Job {
    /// The sort key of an agent's jobs, in nanoseconds, lowest first. Jobs of known size come
    /// first, the longest first, so that short jobs fill the gaps at the end. Jobs of unknown size
    /// follow, the shortest first, so that most of a batch ends early. Each second of waiting
    /// lowers the key by a second, so that every job gets its turn.
    fn turn(&self, takes: Duration) -> i128 {
        let nanos = |time: Duration| i128::try_from(time.as_nanos()).unwrap_or(i128::MAX / 4);
        let takes = if self.sized { -nanos(takes) } else { nanos(takes) };
        takes - nanos(self.waited)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedSite {
    /// The site's index.
    pub job: usize,
    /// The agent's index.
    pub agent: usize,
    /// Time until a slot is free for the site.
    pub begins: Duration,
    /// Time until the site's crawl ends.
    pub ends: Duration,
}

/// A job placed at an agent, and the time that the job takes at this agent.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlacedJob {
    pub(super) job: usize,
    pub(super) takes: Duration,
}

/// Plans an agent's jobs. Returns them in the order in which they begin.
pub(super) fn in_turn(agent: usize, jobs: &[Job], mut placed: Vec<PlacedJob>, frees: &[Duration]) -> Vec<PlannedSite> {
    placed.sort_by_key(|one| jobs[one.job].turn(one.takes));
    let mut free: BinaryHeap<Reverse<Duration>> = frees.iter().copied().map(Reverse).collect();
    let begun = placed.into_iter().filter_map(|PlacedJob { job, takes }| {
        let mut first = free.peek_mut()?;
        let begins = first.0;
        first.0 = begins.saturating_add(takes);
        Some(PlannedSite { job, agent, begins, ends: first.0 })
    });
    begun.collect()
}
