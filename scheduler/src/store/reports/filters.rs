//! What a report counts: the tasks of a batch or of one of its rounds, or the crawls of some agents
//! in some time.

use chrono::{DateTime, Utc};

use crate::model::{AgentId, BatchId};
use crate::store::types::whole;

/// Selects crawls, or selects sites by the agent of their newest assignment.
#[derive(Debug, Clone, Default)]
pub struct CrawlFilter {
    /// `None` selects all batches.
    pub batch: Option<BatchId>,
    /// `None` selects all agents, and also sites without an agent.
    pub agents: Option<Vec<AgentId>>,
    /// The crawls ended at this time or later.
    pub since: Option<DateTime<Utc>>,
    /// The crawls ended before this time.
    pub until: Option<DateTime<Utc>>,
}

/// Selects the tasks of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportScope {
    pub batch: BatchId,
    /// The round; `None` selects each site's newest round.
    pub round: Option<u32>,
}

impl ReportScope {
    pub const fn newest(batch: BatchId) -> Self {
        Self { batch, round: None }
    }

    pub(super) fn stored(self) -> Option<i32> {
        self.round.map(whole)
    }
}
