//! Defines the facts about the system's state that `landfall status` shows, and counts the fleet's
//! agents, slots and leases.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::model::{BatchId, ServiceState, Strategy};
use crate::throughput::Estimate;

/// Facts about the whole system.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The time by the database's clock.
    pub now: DateTime<Utc>,
    /// The schedulers in the order in which they started, including those that stopped without
    /// notice in the last hour.
    pub schedulers: Vec<SchedulerStatus>,
    pub database: DatabaseStatus,
    /// All agents that have not been removed, sorted by name.
    pub agents: Vec<AgentStatus>,
    /// Number of enrolment tokens that can still be used.
    pub open_enrolments: u64,
    pub landmarks: Vec<LandmarkStatus>,
    /// The newest embedding; `None` before the first.
    pub map: Option<MapStatus>,
    /// Why the map as a whole is not trusted; `None` if the map is trusted.
    pub map_alarm: Option<String>,
    /// Batches with open tasks, the newest first, at most as many as the caller requested.
    pub batches: Vec<BatchStatus>,
    /// Number of batches with open tasks that `batches` leaves out.
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
    /// Whether the scheduler renewed its row in the database in time.
    pub running: bool,
    /// The roles that the scheduler leads.
    pub roles: Vec<String>,
    /// The space on the file system of the scheduler's data directory; `None` if unknown.
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
        // The conversions are exact up to 2^53 bytes, which no disk reaches.
        if self.size == 0 { 1.0 } else { self.free as f64 / self.size as f64 }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatabaseStatus {
    /// The server's version, such as `15.18`.
    pub version: String,
    /// The database's size in bytes.
    pub size: u64,
    /// Whether the server accepts no changes, for example because it is a standby.
    pub read_only: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentStatus {
    pub name: String,
    pub service: ServiceState,
    pub connected: bool,
    pub slots: u32,
    pub leases: u32,
    pub version: String,
    /// Why the agent accepts no leases; `None` if it gave no reason.
    pub paused: Option<String>,
    /// Why the agent's measurements are ignored; `None` while the agent is trusted.
    pub quarantined: Option<String>,
    /// The number of seconds by which the agent's clock is ahead of the scheduler's;
    /// `None` if unknown.
    pub clock_ahead_s: Option<i32>,
    /// The fullest file system to which the agent writes; `None` if unknown.
    pub disk: Option<DiskSpace>,
    /// Whether a second process with the same credential was refused recently.
    pub has_twin: bool,
    /// Whether the agent is connected and has a beacon that no other agent has reached.
    pub unreached: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LandmarkStatus {
    pub name: String,
    /// Whether an operator chose the landmark; otherwise an election chose it.
    pub by_hand: bool,
    /// The time for which the landmark has been disconnected; `None` while it is connected.
    pub away_for: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MapStatus {
    pub epoch: i64,
    pub fitted_at: DateTime<Utc>,
    /// The median of |ln(predicted / measured)| over the mesh; `None` if unknown.
    pub error: Option<f64>,
    /// Number of agents with a placement in the embedding.
    pub agents: u32,
    pub landmarks: u32,
    pub dimensions: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct BatchStatus {
    pub id: BatchId,
    pub name: String,
    pub strategy: Strategy,
    /// Number of the batch's sites. Each site is counted once, in the state of its newest round.
    pub sites: u64,
    /// Number of sites whose newest round has ended, with any result.
    pub ended: u64,
    pub failed: u64,
    /// Number of sites that are being crawled.
    pub crawling: u64,
    /// Number of sites that no agent may crawl.
    pub unmet: u64,
    /// Crawls that ended per minute, over the last few minutes; `None` if no crawl ended.
    pub sites_per_minute: Option<f64>,
    /// Megabytes (10^6 bytes) per minute, fetched by the crawls that `sites_per_minute` counts.
    pub megabytes_per_minute: Option<f64>,
    /// Time since the last crawl of the batch ended, or since the batch was submitted if
    /// none has ended.
    pub idle: Duration,
    /// The time limit of the batch's crawls.
    pub max_duration: Duration,
    /// The remaining time; `None` while it is being computed.
    pub estimate: Option<Estimate>,
}

/// The fleet in numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FleetSummary {
    /// Number of agents in each state.
    pub agents: BTreeMap<ServiceState, u32>,
    /// The slots of the connected agents.
    pub slots: u64,
    pub leases: u64,
}

impl FleetSummary {
    pub fn of(agents: &[AgentStatus]) -> Self {
        let mut by_state: BTreeMap<ServiceState, u32> = BTreeMap::new();
        for agent in agents {
            *by_state.entry(agent.service).or_default() += 1;
        }
        let connected = agents.iter().filter(|agent| agent.connected);
        Self {
            agents: by_state,
            slots: connected.map(|agent| u64::from(agent.slots)).sum(),
            leases: agents.iter().map(|agent| u64::from(agent.leases)).sum(),
        }
    }
}
