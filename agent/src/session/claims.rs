//! Sends claims of addresses to the scheduler, and passes the replies to the crawls. A crawl's
//! claim of an address is its request for a permit to connect to the address. If the session
//! breaks, the next session sends unanswered claims again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;

use landfall_proto::v1::AddressAnswer;
use tokio::sync::{mpsc, oneshot};

use crate::crawl::{AddressPermits, NotPermitted, PermitSource, SchedulerSilence};
use crate::disk::outbox::LeaseKey;

/// Maximum number of queued claims of addresses. A crawl makes no second claim before it gets the
/// reply to its first claim.
const WAITING: usize = 64;

/// A crawl's claim of an address, and the channel for the reply.
#[derive(Debug)]
pub(super) struct PendingClaim {
    key: LeaseKey,
    address: IpAddr,
    answer: oneshot::Sender<Result<(), NotPermitted>>,
}

#[derive(Debug)]
pub(super) struct AddressClaims {
    sender: mpsc::Sender<PendingClaim>,
    receiver: mpsc::Receiver<PendingClaim>,
    /// Claims of addresses without a reply, at most one per crawl.
    pending: HashMap<LeaseKey, PendingClaim>,
}

impl Default for AddressClaims {
    fn default() -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        Self { sender, receiver, pending: HashMap::new() }
    }
}

impl AddressClaims {
    pub(super) fn sender(&self) -> mpsc::Sender<PendingClaim> {
        self.sender.clone()
    }

    /// Waits for the next claim of an address. Cancel-safe.
    pub(super) async fn next(&mut self) -> (LeaseKey, IpAddr) {
        let claim = self.receiver.recv().await.expect("a sender is kept beside it");
        let (key, address) = (claim.key, claim.address);
        self.pending.insert(key, claim);
        (key, address)
    }

    pub(super) fn unanswered(&self) -> impl Iterator<Item = (LeaseKey, IpAddr)> {
        self.pending.values().map(|claim| (claim.key, claim.address))
    }

    pub(super) fn answered(&mut self, answer: AddressAnswer) {
        let key = LeaseKey { task_id: answer.task_id, token: answer.token };
        // If two sessions reply to one claim of an address, only the first reply has an effect.
        let Entry::Occupied(claim) = self.pending.entry(key) else { return };
        if answer.address.parse() == Ok(claim.get().address) {
            let permit = if answer.granted { Ok(()) } else { Err(NotPermitted(answer.reason)) };
            // Errors are ignored, because the crawl may have been stopped.
            let _stopped = claim.remove().answer.send(permit);
        }
    }

    pub(super) fn forget(&mut self, key: LeaseKey) {
        self.pending.remove(&key);
    }
}

/// The permits of a lease's crawl. The crawl requests them through `claims`, and reads from
/// `silence` whether the scheduler is disconnected.
pub(super) fn permits(key: LeaseKey, claims: mpsc::Sender<PendingClaim>, silence: SchedulerSilence) -> AddressPermits {
    let source: PermitSource = Arc::new(move |address| {
        let claims = claims.clone();
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            // Both calls fail only when the agent ends, which ends the crawl too.
            let ended = || NotPermitted("the agent stops".to_owned());
            claims.send(PendingClaim { key, address, answer }).await.map_err(|_| ended())?;
            answered.await.map_err(|_| ended())?
        })
    });
    AddressPermits::from_scheduler(source, silence)
}
