//! An outcome report is what an agent says about a finished crawl.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::model::site_name::SiteName;
use crate::model::{CrawlEnding, LeaseToken, Rtt, TaskId};

/// An agent's report of a finished crawl.
#[derive(Debug, Clone)]
pub struct OutcomeReport {
    pub task: TaskId,
    pub token: LeaseToken,
    pub ending: CrawlEnding,
    pub pages: u32,
    /// Number of body bytes received.
    pub bytes: u64,
    pub errors: u32,
    /// When the crawl began, by the agent's clock.
    pub started_at: DateTime<Utc>,
    pub duration: Duration,
    /// The median time to the first byte on warm connections.
    pub rtt: Option<Rtt>,
    /// A sentence from the agent; may be empty.
    pub message: String,
    /// Number of pages fetched again because the previous agent's checkpoint did not include them.
    pub refetched: u32,
    /// Number of links skipped because they lead into traps.
    pub trapped: u32,
    /// The other sites to which pages link.
    pub hosts: Vec<SiteName>,
}
