//! The state of the whole system at a glance, and the findings that need an operator's attention.
//!
//! The store reads the facts, and [`attention`] draws conclusions from them.

mod attention;
mod facts;

pub use attention::{Attention, AttentionKind, attention};
pub use facts::{
    AgentStatus, BatchStatus, DatabaseStatus, DiskSpace, FleetSummary, LandmarkStatus, MapStatus, SchedulerStatus,
    Status,
};
