//! Starts the crawls of granted leases if slots are free, and stops the crawls of leases that were
//! cancelled, preempted or replaced. Returns leases that cannot be crawled.

use landfall_proto::v1::CrawlOrder;
use landfall_proto::v1::session_request::Message as Up;
use tokio::task;
use tokio_util::sync::CancellationToken;

use super::Work;
use crate::disk::lease_key::LeaseKey;
use crate::session::convert::leases::{self, GrantedLease};
use crate::session::leased_crawl::LeaseCrawl;
use crate::session::own_or_external::LeasedCrawl;
use crate::session::permits;

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

impl Work {
    /// Number of slots in which a crawl may start. A crawl that is being stopped no longer occupies
    /// a slot, because it sends no more requests.
    pub(super) fn free_slots(&self) -> usize {
        let going_on = self.running.values().filter(|crawl| !crawl.stop.is_cancelled()).count();
        let kept = self.capacity.saturating_add(SPARE_OUTCOMES).saturating_sub(self.outbox.len());
        if self.paused.is_some() { 0 } else { self.capacity.saturating_sub(going_on).min(kept) }
    }

    /// Stops the crawls of a task's earlier leases, because a newer lease proves that the earlier
    /// leases have ended. Returns `false` if a lease newer than `key` is being crawled.
    fn supersede(&self, key: LeaseKey) -> bool {
        let same_task = || self.running.iter().filter(|(other, _)| other.task_id == key.task_id);
        if same_task().any(|(other, _)| other.token > key.token) {
            return false;
        }
        same_task().for_each(|(_, crawl)| crawl.stop.cancel());
        true
    }

    /// Stops the crawl of a cancelled lease.
    pub(in crate::session) fn cancel(&self, key: LeaseKey) {
        if let Some(crawl) = self.running.get(&key) {
            tracing::info!(task.id = key.task_id, token = key.token, "a crawl is stopped: its task was cancelled");
            crawl.stop.cancel();
        }
    }

    /// Ends the crawl of a preempted lease. The lease occupies its slot until the agent returns it.
    pub(in crate::session) fn preempt(&self, key: LeaseKey, reason: &str) {
        if let Some(crawl) = self.running.get(&key) {
            tracing::info!(
                task.id = key.task_id,
                token = key.token,
                reason,
                "a crawl is handed back unfinished: its lease is preempted"
            );
            crawl.preempt.cancel();
        }
    }

    /// Starts the crawl of a granted lease. Returns a reply instead if the crawl cannot start, or
    /// if its outcome is already known.
    pub(in crate::session) fn crawl(&mut self, mut order: CrawlOrder) -> Option<Up> {
        let key = LeaseKey { task_id: order.task_id, token: order.token };
        if let Some(outcome) = self.outbox.get(key) {
            return Some(Up::Outcome(outcome.clone()));
        }
        if self.running.contains_key(&key) {
            return None;
        }
        let checkpoint = std::mem::take(&mut order.checkpoint);
        let (Some(context), Some(granted)) = (self.context.clone(), leases::granted(order)) else {
            tracing::warn!(
                task.id = key.task_id,
                "a lease is handed back: there is no contact URL, or its site or policy is invalid"
            );
            return Some(leases::release(key));
        };
        let GrantedLease { job, store, product, user_agent } = granted;
        let context = self.request_base.context_of(context, user_agent, product);
        if !self.supersede(key) || self.free_slots() == 0 {
            return Some(leases::release(key));
        }
        let (stop, preempt) = (CancellationToken::new(), CancellationToken::new());
        let permits = permits::of_lease(key, self.permits.sender(), self.deadline.silence().clone());
        let (stores_pages, preempted) = (store, preempt.clone());
        let crawl = LeasedCrawl { key, job, checkpoint, stores_pages, permits, context, preempted };
        let (crawler, writer, traces) = (self.crawler(), self.outbox.writer(), self.traces.clone());
        let crawling = LeaseCrawl { crawl, crawler, writer, traces };
        let task = self.crawls.spawn(crawling.run(stop.clone(), self.closing.clone())).id();
        self.running.insert(key, RunningCrawl { task, stop, preempt });
        None
    }
}
