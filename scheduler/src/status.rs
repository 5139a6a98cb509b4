//! The state of the whole system at a glance, and what needs an operator's attention.
//!
//! Pure: the store reads the facts, and [`attention`] draws conclusions from them.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::model::service::ServiceState;
use crate::model::{BatchId, Strategy};
use crate::throughput::Estimate;

mod attention;

pub use attention::{Attention, AttentionKind, attention};

/// Facts about the whole system.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The time by the database's clock.
    pub now: DateTime<Utc>,
    /// In the order in which they started. Includes schedulers that stopped without notice in the
    /// last hour.
    pub schedulers: Vec<SchedulerStatus>,
    pub database: DatabaseStatus,
    /// All agents that were not removed, by name.
    pub agents: Vec<AgentStatus>,
    /// Number of open one-time tokens.
    pub open_enrolments: u64,
    pub landmarks: Vec<LandmarkStatus>,
    /// The newest embedding; `None` before the first.
    pub map: Option<MapStatus>,
    /// Why the map as a whole is not trusted; `None` if it is.
    pub map_alarm: Option<String>,
    /// Batches with open tasks, the newest first.
    pub batches: Vec<BatchStatus>,
    /// Number of further batches with open tasks.
    pub more_batches: u64,
    /// Number of sites whose circuit is open.
    pub open_circuits: u64,
    /// Whether a contact URL is set.
    pub has_contact: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerStatus {
    pub url: String,
    pub version: String,
    pub started_at: DateTime<Utc>,
    /// Whether it renewed its row in time.
    pub running: bool,
    /// The roles that it leads.
    pub roles: Vec<String>,
    /// The file system of its data directory; `None` when unknown.
    pub disk: Option<DiskSpace>,
}

/// A file system's space in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    pub free: u64,
    pub size: u64,
}

impl DiskSpace {
    /// The free share, 0 to 1.
    pub fn free_share(self) -> f64 {
        // Exact up to 2^53 bytes, which no disk reaches.
        if self.size == 0 { 1.0 } else { self.free as f64 / self.size as f64 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseStatus {
    /// The server's version, as `15.18`.
    pub version: String,
    /// The database's size in bytes.
    pub size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentStatus {
    pub name: String,
    pub service: ServiceState,
    pub connected: bool,
    /// Number of slots.
    pub slots: u32,
    pub leases: u32,
    pub version: String,
    /// Why it accepts no lease; `None` if it gave no reason.
    pub paused: Option<String>,
    /// Why its measurements are ignored; `None` while it is trusted.
    pub quarantined: Option<String>,
    /// By how many seconds its clock is ahead of the scheduler's; `None` when unknown.
    pub clock_ahead_s: Option<i32>,
    /// The fullest file system that it writes to; `None` when unknown.
    pub disk: Option<DiskSpace>,
    /// Whether a second process with its credential was refused recently.
    pub has_twin: bool,
    /// Whether it is connected and runs a beacon that no other agent has reached.
    pub unreached: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LandmarkStatus {
    pub name: String,
    /// Whether an operator chose it, rather than an election.
    pub by_hand: bool,
    /// How long it has been disconnected; `None` while it is connected.
    pub away_for: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MapStatus {
    pub epoch: i64,
    pub fitted_at: DateTime<Utc>,
    /// The median of |ln(predicted / measured)| over the mesh; `None` when unknown.
    pub error: Option<f64>,
    /// Number of agents that it places.
    pub agents: u32,
    pub landmarks: u32,
    pub dimensions: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct BatchStatus {
    pub id: BatchId,
    pub name: String,
    pub strategy: Strategy,
    /// Number of its sites, counting newest rounds.
    pub sites: u64,
    /// Of these, sites that have ended with any result.
    pub ended: u64,
    pub failed: u64,
    /// Of the sites, those that are being crawled.
    pub crawling: u64,
    /// Sites that no agent may crawl, up to [`UNMET_COUNTED`].
    pub unmet: u64,
    /// Crawls that ended per minute, over the last minutes; `None` if none did.
    pub sites_per_minute: Option<f64>,
    /// Megabytes (10^6 bytes) per minute of these crawls.
    pub megabytes_per_minute: Option<f64>,
    /// Time since one of its crawls ended; before the first, since it was submitted.
    pub idle: Duration,
    /// The time limit of its crawls.
    pub max_duration: Duration,
    /// The remaining time; `None` while it is being computed.
    pub estimate: Option<Estimate>,
}

/// Sites that no agent may crawl are counted up to this number, because a batch may have a million.
pub const UNMET_COUNTED: u64 = 10_000;
