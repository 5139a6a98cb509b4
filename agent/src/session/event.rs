//! Events of the agent's work that the session handles, such as the end of a crawl.

use std::net::IpAddr;
use std::time::Duration;

use landfall_proto::v1::{CrawlCheckpoint, MeasurementReport, OutcomeReport};

use crate::disk::lease_key::LeaseKey;

#[derive(Debug)]
pub(super) enum WorkEvent {
    /// A crawl ended with this outcome, which is also in the outbox.
    Outcome(OutcomeReport),
    /// A crawl was stopped. Contains its last checkpoint.
    Unfinished(LeaseKey, Option<CrawlCheckpoint>),
    /// A site requires a pause of the given duration. Contains the crawl's last checkpoint.
    Paused(LeaseKey, Option<CrawlCheckpoint>, Duration),
    /// A new checkpoint of a running crawl.
    Checkpoint(CrawlCheckpoint),
    /// A crawl requests a permit for an address.
    PermitWanted(LeaseKey, IpAddr),
    /// A crawl panicked. Contains the panic's message.
    Crashed(LeaseKey, String),
    Measured(MeasurementReport),
    /// A check of the free space found that the agent can take leases again, or must take no more.
    SpaceChecked,
    /// The deadline of all leases has passed.
    DeadlinePassed,
}

impl WorkEvent {
    /// The lease that this event ends without an outcome; `None` for other events.
    pub(super) const fn ends(&self) -> Option<LeaseKey> {
        match self {
            Self::Unfinished(key, _) | Self::Paused(key, ..) | Self::Crashed(key, _) => Some(*key),
            Self::Outcome(_)
            | Self::Checkpoint(_)
            | Self::PermitWanted(..)
            | Self::Measured(_)
            | Self::SpaceChecked
            | Self::DeadlinePassed => None,
        }
    }
}
