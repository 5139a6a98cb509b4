//! Starts the crawl of a granted lease, and handles its end.

use std::sync::Arc;

use landfall_proto::v1::CrawlOrder;
use landfall_proto::v1::session_request::Message as Up;
use tokio::task;
use tokio_util::sync::CancellationToken;

use super::agent_work::Work;
use super::running_crawls::RunningCrawl;
use crate::disk::lease_key::LeaseKey;
use crate::metrics::{CrawlResult, METRICS};
use crate::session::convert::leases::{self, GrantedLease};
use crate::session::event::WorkEvent;
use crate::session::leased_crawl::{CrawlRunner, Crawler, LeasedCrawl, OwnCrawler, panic_message};
use crate::session::permits;

impl Work {
    /// Number of slots in which a crawl may start; zero while the agent's disks permit none.
    pub(super) fn free_slots(&self) -> usize {
        if self.disks.paused().is_some() { 0 } else { self.running.free_slots(self.capacity, self.outbox.len()) }
    }

    /// Starts the crawl of a granted lease. Returns a reply instead if the crawl cannot start, or
    /// if its outcome is already known.
    pub(in crate::session) fn crawl(&mut self, mut order: CrawlOrder) -> Option<Up> {
        let key = LeaseKey { task_id: order.task_id, token: order.token };
        if let Some(outcome) = self.outbox.get(key) {
            return Some(Up::Outcome(outcome.clone()));
        }
        if self.running.contains(key) {
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
        let context = self.request_base.context_of(context, user_agent, product.as_ref());
        if !self.running.supersede(key) || self.free_slots() == 0 {
            return Some(leases::release(key));
        }
        let (stop, preempt) = (CancellationToken::new(), CancellationToken::new());
        let permits = permits::of_lease(key, self.permits.sender(), self.deadline.silence().clone());
        let (stores_pages, preempted) = (store, preempt.clone());
        let crawl = LeasedCrawl { key, job, checkpoint, stores_pages, permits, context, preempted };
        let (crawler, writer, traces) = (self.crawler(), self.outbox.writer(), self.traces.clone());
        let crawling = CrawlRunner { crawl, crawler, writer, traces };
        let task = self.crawls.spawn(crawling.run(stop.clone(), self.closing.clone())).id();
        self.running.insert(key, RunningCrawl { task, stop, preempt });
        None
    }

    fn crawler(&self) -> Crawler {
        match &self.external {
            Some(external) => Crawler::External(external.clone()),
            None => Crawler::Own(OwnCrawler {
                kept: self.kept.clone(),
                store: self.store.clone(),
                robots: Arc::clone(&self.robots),
                checkpoints: self.checkpoints.0.clone(),
            }),
        }
    }

    pub(super) fn crawl_ended(
        &mut self,
        joined: Result<(task::Id, Option<WorkEvent>), task::JoinError>,
    ) -> Option<WorkEvent> {
        let id = joined.as_ref().map_or_else(task::JoinError::id, |(id, _)| *id);
        let key = self.running.remove(id)?;
        self.permits.forget(key);
        match joined {
            Ok((_, event)) => {
                if let Some(WorkEvent::Outcome(report)) = &event {
                    self.outbox.put(report.clone());
                }
                event
            }
            Err(error) => {
                // The error must be a panic, because the tokio tasks of crawls are never aborted.
                let crash = error.try_into_panic().map_or_else(|error| error.to_string(), panic_message);
                tracing::error!(task.id = key.task_id, token = key.token, crash, "a crawl panicked");
                METRICS.crawl_ended(CrawlResult::Crashed);
                Some(WorkEvent::Crashed(key, crash))
            }
        }
    }
}
