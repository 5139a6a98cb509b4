//! Passes the crawls' requests for permits to the scheduler, and the replies back to the crawls,
//! and defines the events of the agent's work, such as the end of a crawl. A permit allows a crawl
//! to connect to an address. If the session breaks, the next session sends unanswered requests
//! again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use landfall_proto::v1::{CrawlCheckpoint, MeasurementReport, OutcomeReport, PermitAnswer};
use tokio::sync::{mpsc, oneshot};

use crate::crawl::{AddressPermits, NotPermitted, PermitSource, SchedulerSilence};
use crate::disk::crawl_files::LeaseKey;

/// Maximum number of queued requests for permits. A crawl makes no second request before it gets
/// the reply to its first request.
const WAITING: usize = 64;

/// A crawl's request for a permit, and the channel for the reply.
#[derive(Debug)]
pub(super) struct PendingRequest {
    key: LeaseKey,
    address: IpAddr,
    answer: oneshot::Sender<Result<(), NotPermitted>>,
}

#[derive(Debug)]
pub(super) struct PermitRequests {
    sender: mpsc::Sender<PendingRequest>,
    receiver: mpsc::Receiver<PendingRequest>,
    /// Requests without a reply, at most one per crawl.
    pending: HashMap<LeaseKey, PendingRequest>,
}

impl Default for PermitRequests {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        Self { sender, receiver, pending: HashMap::new() }
    }
}

impl PermitRequests {
    pub(super) fn sender(&self) -> mpsc::Sender<PendingRequest> {
        self.sender.clone()
    }

    /// Waits for the next request for a permit. Cancel-safe.
    pub(super) async fn next(&mut self) -> (LeaseKey, IpAddr) {
        let request = self.receiver.recv().await.expect("a sender is kept beside it");
        let (key, address) = (request.key, request.address);
        self.pending.insert(key, request);
        (key, address)
    }

    pub(super) fn unanswered(&self) -> impl Iterator<Item = (LeaseKey, IpAddr)> {
        self.pending.values().map(|request| (request.key, request.address))
    }

    pub(super) fn answered(&mut self, answer: PermitAnswer) {
        let key = LeaseKey::from(&answer);
        // If two sessions reply to one request, only the first reply has an effect.
        let Entry::Occupied(request) = self.pending.entry(key) else { return };
        if answer.address.parse() == Ok(request.get().address) {
            let permit = if answer.granted { Ok(()) } else { Err(NotPermitted(answer.reason)) };
            // Errors are ignored, because the crawl may have been stopped.
            let _stopped = request.remove().answer.send(permit);
        }
    }

    pub(super) fn forget(&mut self, key: LeaseKey) {
        self.pending.remove(&key);
    }
}

/// The permits of a lease's crawl. The crawl requests them through `requests`, and reads from
/// `silence` whether the scheduler is disconnected.
pub(super) fn permits_of_lease(
    key: LeaseKey,
    requests: mpsc::Sender<PendingRequest>,
    silence: SchedulerSilence,
) -> AddressPermits {
    let source: PermitSource = Arc::new(move |address| {
        let requests = requests.clone();
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            // Both calls fail only when the agent ends, which ends the crawl too.
            let ended = || NotPermitted("the agent stops".to_owned());
            requests.send(PendingRequest { key, address, answer }).await.map_err(|_| ended())?;
            answered.await.map_err(|_| ended())?
        })
    });
    AddressPermits::from_scheduler(source, silence)
}

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
