//! What ends, or comes up, while an agent works.

use std::net::IpAddr;
use std::time::Duration;

use landfall_proto::v1::{CrawlCheckpoint, MeasurementReport, OutcomeReport};

use crate::disk::outbox::LeaseKey;

/// Something ended.
#[derive(Debug)]
pub(super) enum Finished {
    /// A crawl, with an outcome; it is in the outbox too.
    Outcome(OutcomeReport),
    /// A crawl that was stopped, and how far it had come.
    Unfinished(LeaseKey, Option<CrawlCheckpoint>),
    /// A crawl whose site is to be left alone for so long, and how far it had come.
    Paused(LeaseKey, Option<CrawlCheckpoint>, Duration),
    /// How far a crawl has come that goes on.
    Checkpoint(CrawlCheckpoint),
    /// A crawl asks whether it may send requests to an address.
    Asked(LeaseKey, IpAddr),
    /// A crawl that panicked, and with what.
    Crashed(LeaseKey, String),
    Measured(MeasurementReport),
    /// A look at the disk, which says otherwise than the one before whether leases may be taken.
    Looked,
    /// The time that was renewed last.
    DeadlinePassed,
}

impl Finished {
    /// The lease that nothing is left of but this: no outcome in the outbox, and no crawl that goes on.
    pub(super) const fn ends(&self) -> Option<LeaseKey> {
        match self {
            Self::Unfinished(key, _) | Self::Paused(key, ..) | Self::Crashed(key, _) => Some(*key),
            _ => None,
        }
    }
}
