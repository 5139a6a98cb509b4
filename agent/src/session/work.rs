//! The agent's work for the scheduler: crawls, measurements, and unacknowledged outcomes. The work
//! outlives sessions.
//!
//! Invariants: At most `capacity` crawls run, not counting those that are being stopped. Each lease
//! is crawled at most once. If a task had several leases, only the newest is crawled. The number of
//! unacknowledged outcomes is limited. At the deadline of the leases every crawl is stopped.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use landfall_proto::traces::TraceSender;
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::{CrawlCheckpoint, CrawlOrder, Heartbeat, HeldLease, MeasureOrder, MeasurementReport, Welcome};
use tokio::sync::mpsc;
use tokio::task::{self, JoinSet};
use tokio_util::sync::CancellationToken;

use super::convert::leases::{self, GrantedLease};
use super::deadline::LeaseDeadline;
use super::event::WorkEvent;
use super::leased_crawl::{CrawlRunner, Crawler, LeasedCrawl, OwnCrawler, panic_message};
use super::permits::{self, PermitRequests};
use crate::crawl::{ExternalCrawler, RobotsCache};
use crate::disk::crawl_files::CrawlFiles;
use crate::disk::lease_key::LeaseKey;
use crate::disk::outbox::Outbox;
use crate::machine::clock::{self, BootTime};
use crate::metrics::{CrawlResult, METRICS, WorkState};
use crate::net::request_context::{RequestBase, RequestContext};
use crate::net::user_agent::UserAgent;
use crate::warc::Store;

mod disks;
mod measurement_orders;
mod running_crawls;

use disks::AgentDisks;
use measurement_orders::MeasurementOrders;
use running_crawls::{RunningCrawl, RunningCrawls};

/// Maximum number of checkpoints, each of up to a megabyte, that wait to be sent. If the queue is
/// full, a checkpoint is dropped, and the crawl makes another a minute later.
const CHECKPOINTS: usize = 4;
/// Maximum number of unacknowledged outcomes in addition to one per slot. The extra outcomes are
/// needed because the scheduler may grant a new lease before it acknowledges the outcome of the
/// previous lease.
const SPARE_OUTCOMES: usize = 64;

#[derive(Debug)]
pub struct Work {
    request_base: RequestBase,
    capacity: usize,
    context: Option<Arc<RequestContext>>,
    pub(super) running: RunningCrawls,
    crawls: JoinSet<Option<WorkEvent>>,
    orders: MeasurementOrders,
    pub(super) outbox: Outbox,
    /// The files from which crawls can resume.
    kept: CrawlFiles,
    store: Option<Store>,
    /// The robots.txt of recently crawled sites.
    robots: Arc<RobotsCache>,
    /// The external crawler, which replaces the agent's own crawler.
    external: Option<ExternalCrawler>,
    traces: Option<TraceSender>,
    checkpoints: (mpsc::Sender<CrawlCheckpoint>, mpsc::Receiver<CrawlCheckpoint>),
    pub(super) permits: PermitRequests,
    disks: AgentDisks,
    /// Cancelled when the agent stops. After that, a failed write of an outcome is no longer
    /// retried.
    closing: CancellationToken,
    pub(super) deadline: LeaseDeadline,
}

impl Work {
    pub fn new(request_base: RequestBase, capacity: u32, outbox: Outbox, kept: CrawlFiles) -> Self {
        Self {
            disks: AgentDisks::of(&outbox, None, None),
            context: request_base.user_agent.clone().map(|user_agent| Arc::new(request_base.context(user_agent))),
            request_base,
            capacity: usize::try_from(capacity).unwrap_or(usize::MAX),
            running: RunningCrawls::default(),
            crawls: JoinSet::new(),
            orders: MeasurementOrders::default(),
            outbox,
            kept,
            store: None,
            robots: Arc::default(),
            external: None,
            traces: None,
            checkpoints: mpsc::channel(CHECKPOINTS),
            permits: PermitRequests::default(),
            closing: CancellationToken::new(),
            deadline: LeaseDeadline::default(),
        }
    }

    /// Sets the store for the pages of crawls.
    #[must_use]
    pub fn storing(self, store: Option<Store>) -> Self {
        Self { store, ..self }.watching_disks()
    }

    /// Sets the command that crawls sites; `None` means the agent's own crawler.
    #[must_use]
    pub fn crawling_with(self, external: Option<ExternalCrawler>) -> Self {
        Self { external, ..self }.watching_disks()
    }

    /// Sends a span for each crawl. If `traces` is `None`, no spans are sent.
    #[must_use]
    pub fn tracing_with(self, traces: Option<TraceSender>) -> Self {
        Self { traces, ..self }
    }

    fn watching_disks(self) -> Self {
        let disks = AgentDisks::of(&self.outbox, self.store.as_ref(), self.external.as_ref());
        Self { disks, ..self }
    }

    /// Additional time for which a stopping agent waits for its external crawler; zero if it has no
    /// external crawler.
    pub(super) fn grace(&self) -> Duration {
        self.external.as_ref().map(ExternalCrawler::grace).unwrap_or_default()
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

    /// Waits for the next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> WorkEvent {
        METRICS.work_is(self.state());
        loop {
            tokio::select! {
                Some(joined) = self.crawls.join_next_with_id() => {
                    if let Some(event) = self.crawl_ended(joined) {
                        return event;
                    }
                }
                Some(checkpoint) = self.checkpoints.1.recv() => return WorkEvent::Checkpoint(checkpoint),
                (key, address) = self.permits.next() => return WorkEvent::PermitWanted(key, address),
                () = self.outbox.space_checked() => {
                    if self.note_space() {
                        return WorkEvent::SpaceChecked;
                    }
                }
                () = self.disks.output_checked() => {
                    if self.note_space() {
                        return WorkEvent::SpaceChecked;
                    }
                }
                Some(report) = self.orders.next() => return WorkEvent::Measured(report),
                () = self.deadline.passed() => {
                    self.deadline.clear();
                    self.running.stop_all();
                    return WorkEvent::DeadlinePassed;
                }
            }
        }
    }

    pub(crate) fn state(&self) -> WorkState {
        WorkState {
            slots: self.capacity,
            leases: self.running.len(),
            outcomes_waiting: self.outbox.len(),
            paused: self.disks.paused().is_some(),
            disk: self.disks.fullest(),
        }
    }

    fn crawl_ended(&mut self, joined: Result<(task::Id, Option<WorkEvent>), task::JoinError>) -> Option<WorkEvent> {
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

    /// The leases that this agent holds: those of running crawls and of unacknowledged outcomes.
    pub(super) fn held(&self) -> Vec<HeldLease> {
        self.running.unstopped().chain(self.outbox.keys()).map(HeldLease::from).collect()
    }

    /// Applies the welcome of a new session. Crawls whose leases the scheduler did not keep are
    /// stopped.
    pub(super) fn welcome(&mut self, welcome: &Welcome, deadline: BootTime) {
        METRICS.session_opened();
        self.deadline.begin(deadline);
        let kept: HashSet<LeaseKey> =
            welcome.kept.iter().map(|held| LeaseKey { task_id: held.task_id, token: held.token }).collect();
        self.running.stop_all_but(&kept);
        if self.request_base.user_agent.is_none() {
            let user_agent = UserAgent::new(&welcome.contact_url);
            if welcome.contact_url.is_empty() {
                tracing::warn!("no contact URL is set at the scheduler, so nothing is sent to any site");
            } else if let Err(error) = &user_agent {
                tracing::warn!(%error, "no usable contact URL, so nothing is sent to any site");
            }
            self.context = user_agent.ok().map(|user_agent| Arc::new(self.request_base.context(user_agent)));
        }
    }

    /// Number of running crawls, including those that are being stopped.
    pub(super) fn active_crawls(&self) -> u32 {
        u32::try_from(self.running.len()).unwrap_or(u32::MAX)
    }

    /// Starts to check the free space, without waiting for the disk. Returns `true` if the results
    /// so far change whether the agent takes leases. [`Work::next`] reports later changes.
    pub(super) fn check_disk(&mut self) -> bool {
        self.disks.check(&mut self.outbox, self.store.as_ref())
    }

    fn note_space(&mut self) -> bool {
        self.disks.note_space(&mut self.outbox, self.store.as_ref())
    }

    pub(super) fn heartbeat(&self, sequence: u64) -> Heartbeat {
        let disk = self.disks.fullest();
        Heartbeat {
            sequence,
            active_crawls: self.active_crawls(),
            paused: self.disks.paused().unwrap_or_default().to_owned(),
            free_slots: Some(u32::try_from(self.free_slots()).unwrap_or(u32::MAX)),
            outcomes_waiting: u32::try_from(self.outbox.len()).unwrap_or(u32::MAX),
            sent_at: Some(clock::wall().into()),
            disk_free_bytes: disk.map(|disk| disk.free),
            disk_size_bytes: disk.map(|disk| disk.size),
        }
    }

    /// Number of slots in which a crawl may start. A crawl that is being stopped no longer occupies
    /// a slot, because it sends no more requests.
    fn free_slots(&self) -> usize {
        let going_on = self.running.unstopped().count();
        let kept = self.capacity.saturating_add(SPARE_OUTCOMES).saturating_sub(self.outbox.len());
        if self.disks.paused().is_some() { 0 } else { self.capacity.saturating_sub(going_on).min(kept) }
    }

    /// Starts the crawl of a granted lease. Returns a reply instead if the crawl cannot start, or
    /// if its outcome is already known.
    pub(super) fn crawl(&mut self, mut order: CrawlOrder) -> Option<Up> {
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

    /// Starts to carry out a measurement order. Returns a report if the order cannot be carried
    /// out.
    pub(super) fn measure(&mut self, order: MeasureOrder) -> Option<MeasurementReport> {
        self.orders.begin(order, self.context.clone())
    }

    /// Drops the measurements of an ended session. The scheduler orders them again in the next
    /// session.
    pub(super) fn abandon_orders(&mut self) {
        self.orders.abandon();
    }

    /// Stops all work because the agent is stopping. Failed writes of outcomes are not retried.
    pub(super) fn stop_all(&mut self) {
        self.closing.cancel();
        self.give_up();
    }

    /// Stops all work because the agent is stopping, or because another process runs as this agent.
    pub(super) fn give_up(&mut self) {
        self.deadline.clear();
        self.running.stop_all();
        self.abandon_orders();
    }
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::OutcomeReport;
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::super::tests::request_base;
    use super::super::{ActiveSession, meanwhile};
    use super::*;
    use crate::session::convert::leases::release;

    fn work() -> (Work, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(folder.path(), 0).unwrap();
        let kept = CrawlFiles::open(&folder.path().join("crawls")).unwrap();
        (Work::new(request_base(&[]), 1, outbox, kept), folder)
    }

    #[tokio::test]
    async fn a_crawl_that_panics_hands_its_lease_back_with_the_message() {
        let (mut work, _folder) = work();
        for (page, reported) in [(0, "on purpose"), (7, "at page 7")] {
            let key = LeaseKey { task_id: 1, token: 2 };
            let crawling = work
                .crawls
                .spawn(async move { if page == 0 { panic!("on purpose") } else { panic!("at page {page}") } });
            let (task, stop, preempt) = (crawling.id(), CancellationToken::new(), CancellationToken::new());
            work.running.insert(key, RunningCrawl { task, stop, preempt });
            let WorkEvent::Crashed(crashed, crash) = work.next().await else { panic!("it was not told") };
            assert_eq!((crashed, crash.as_str()), (key, reported));
            assert_eq!((work.active_crawls(), work.held()), (0, Vec::new()));
        }
    }

    #[tokio::test]
    async fn a_crawl_that_ends_while_a_session_opens_is_reported_if_its_lease_was_kept() {
        let (mut work, _folder) = work();
        let keys = [1, 2].map(|task_id| LeaseKey { task_id, token: 2 });
        for key in keys {
            let stop = CancellationToken::new();
            let stopped = stop.clone();
            let crawling = work.crawls.spawn(async move {
                stopped.cancelled().await;
                Some(WorkEvent::Unfinished(key, None))
            });
            work.running.insert(key, RunningCrawl { task: crawling.id(), stop, preempt: CancellationToken::new() });
        }
        let held = work.held();
        assert_eq!(held.len(), 2);
        // Stop the crawls, as the agent does if the deadline passes while the scheduler responds
        // slowly.
        work.running.stop_all();
        let mut ended = Vec::new();
        let slow = async {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        meanwhile(&mut work, &CancellationToken::new(), &mut ended, slow).await.unwrap();
        assert_eq!((ended.len(), work.held()), (2, Vec::new()));
        let kept = vec![HeldLease::from(keys[0])];
        let life = Some(prost_types::Duration { seconds: 60, nanos: 0 });
        let welcome = Welcome { heartbeat_interval: life, lease_life: life, kept, ..Welcome::default() };
        let (outbound, _) = mpsc::channel(1);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut serving = ActiveSession::new(outbound, &welcome, BootTime::now(), &mut work, &mut rng);
        serving.report_ended(ended, &welcome);
        let told = std::iter::from_fn(|| serving.pending.pop()).filter_map(|request| request.message);
        assert_eq!(told.collect::<Vec<_>>(), [release(keys[0])]);
    }

    #[tokio::test]
    async fn outcomes_are_written_until_the_agent_stops() {
        let (mut work, folder) = work();
        std::fs::remove_dir_all(folder.path()).unwrap();
        let (writer, closing) = (work.outbox.writer(), work.closing.clone());
        work.give_up();
        let mut keeping = std::pin::pin!(writer.keep(OutcomeReport::default(), &closing));
        while work.outbox.paused().is_none_or(|reason| !reason.starts_with("outcomes cannot be written")) {
            tokio::select! {
                biased;
                kept = &mut keeping => panic!("the disk is away: {kept:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
        work.stop_all();
        assert_eq!(keeping.await, None);
    }
}
