//! Events of the agent's work: ends of crawls, and requests that come up.

use std::net::IpAddr;
use std::time::Duration;

use landfall_proto::v1::{CrawlCheckpoint, MeasurementReport, OutcomeReport};

use crate::disk::outbox::LeaseKey;

/// One event.
#[derive(Debug)]
pub(super) enum WorkEvent {
    /// A crawl ended with an outcome, which is also in the outbox.
    Outcome(OutcomeReport),
    /// A crawl was stopped; with its last checkpoint.
    Unfinished(LeaseKey, Option<CrawlCheckpoint>),
    /// A crawl's site requires a pause of this length; with the crawl's last checkpoint.
    Paused(LeaseKey, Option<CrawlCheckpoint>, Duration),
    /// The checkpoint of a running crawl.
    Checkpoint(CrawlCheckpoint),
    /// A crawl requests a permit for an address.
    PermitWanted(LeaseKey, IpAddr),
    /// A crawl panicked, with this message.
    Crashed(LeaseKey, String),
    Measured(MeasurementReport),
    /// A look at the disk changed whether leases may be taken.
    SpaceChecked,
    /// The current deadline has passed.
    DeadlinePassed,
}

impl WorkEvent {
    /// The lease that ends with this event: it has no outcome in the outbox and no running crawl.
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
