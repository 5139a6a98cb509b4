//! Computes an agent's pace: the expected duration of its crawls.

use std::iter::Sum;
use std::time::Duration;

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
