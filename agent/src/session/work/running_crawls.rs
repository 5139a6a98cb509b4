//! The crawls that are running, how each is stopped, and how many more may start.

use std::collections::{HashMap, HashSet};

use tokio::task;
use tokio_util::sync::CancellationToken;

use crate::disk::lease_key::LeaseKey;

/// Maximum number of unacknowledged outcomes in addition to one per slot. The extra outcomes are
/// needed because the scheduler may grant a new lease before it acknowledges the outcome of the
/// previous lease.
const SPARE_OUTCOMES: usize = 64;

#[derive(Debug)]
pub(super) struct RunningCrawl {
    pub(super) task: task::Id,
    pub(super) stop: CancellationToken,
    /// Cancelled when the scheduler preempts the lease.
    pub(super) preempt: CancellationToken,
}

/// The running crawls by lease, including those that are being stopped.
#[derive(Debug, Default)]
pub(in crate::session) struct RunningCrawls(HashMap<LeaseKey, RunningCrawl>);

impl RunningCrawls {
    pub(super) fn insert(&mut self, key: LeaseKey, crawl: RunningCrawl) {
        self.0.insert(key, crawl);
    }

    /// Removes the crawl that this tokio task carried out. Returns its lease.
    pub(super) fn remove(&mut self, id: task::Id) -> Option<LeaseKey> {
        let key = self.0.iter().find(|(_, crawl)| crawl.task == id).map(|(key, _)| *key)?;
        self.0.remove(&key);
        Some(key)
    }

    pub(super) fn contains(&self, key: LeaseKey) -> bool {
        self.0.contains_key(&key)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The leases of the crawls that are not being stopped.
    pub(super) fn unstopped(&self) -> impl Iterator<Item = LeaseKey> {
        self.0.iter().filter(|(_, crawl)| !crawl.stop.is_cancelled()).map(|(key, _)| *key)
    }

    /// Number of slots in which a crawl may start, of `capacity` slots, while this many outcomes
    /// wait to be acknowledged. A crawl that is being stopped no longer occupies a slot, because it
    /// sends no more requests.
    pub(super) fn free_slots(&self, capacity: usize, outcomes_waiting: usize) -> usize {
        let going_on = self.unstopped().count();
        let kept = capacity.saturating_add(SPARE_OUTCOMES).saturating_sub(outcomes_waiting);
        capacity.saturating_sub(going_on).min(kept)
    }

    /// Stops the crawls of a task's earlier leases, because a newer lease proves that the earlier
    /// leases have ended. Returns `false` if a lease newer than `key` is being crawled.
    pub(super) fn supersede(&self, key: LeaseKey) -> bool {
        let same_task = || self.0.iter().filter(|(other, _)| other.task_id == key.task_id);
        if same_task().any(|(other, _)| other.token > key.token) {
            return false;
        }
        same_task().for_each(|(_, crawl)| crawl.stop.cancel());
        true
    }

    /// Stops the crawl of a cancelled lease.
    pub(in crate::session) fn cancel(&self, key: LeaseKey) {
        if let Some(crawl) = self.0.get(&key) {
            tracing::info!(task.id = key.task_id, token = key.token, "a crawl is stopped: its task was cancelled");
            crawl.stop.cancel();
        }
    }

    /// Ends the crawl of a preempted lease. The lease occupies its slot until the agent returns it.
    pub(in crate::session) fn preempt(&self, key: LeaseKey, reason: &str) {
        if let Some(crawl) = self.0.get(&key) {
            tracing::info!(
                task.id = key.task_id,
                token = key.token,
                reason,
                "a crawl is handed back unfinished: its lease is preempted"
            );
            crawl.preempt.cancel();
        }
    }

    /// Tells crawls to stop if the scheduler did not keep their leases.
    pub(super) fn stop_all_but(&self, kept: &HashSet<LeaseKey>) {
        self.0.iter().filter(|(key, _)| !kept.contains(key)).for_each(|(_, crawl)| crawl.stop.cancel());
    }

    /// Tells every crawl to stop, but does not wait for them to end.
    pub(super) fn stop_all(&self) {
        self.0.values().for_each(|crawl| crawl.stop.cancel());
    }
}
