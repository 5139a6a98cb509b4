//! The agent's work for the scheduler, across sessions: its running crawls, how many more may
//! start, how each is stopped, and what heartbeats and metrics report about the work.
//!
//! Invariants: At most `capacity` crawls run, not counting those that are being stopped. Each lease
//! is crawled at most once. If a task had several leases, only the newest is crawled. The number of
//! unacknowledged outcomes is limited. At the deadline of the leases every crawl is stopped.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use landfall_proto::traces::TraceSender;
use landfall_proto::v1::{CrawlCheckpoint, Heartbeat, HeldLease, MeasureOrder, MeasurementReport, Welcome};
use tokio::sync::mpsc;
use tokio::task::{self, JoinSet};
use tokio_util::sync::CancellationToken;

use super::heartbeats::LeaseDeadline;
use super::lease_pause::AgentDisks;
use super::measurement_orders::MeasurementOrders;
use super::permits_and_events::{PermitRequests, WorkEvent};
use crate::crawl::{ExternalCrawler, RobotsCache};
use crate::disk::crawl_files::{CrawlFiles, LeaseKey};
use crate::disk::outbox::Outbox;
use crate::machine::clock::{self, BootTime};
use crate::metrics::{METRICS, WorkState};
use crate::net::request_context::{RequestBase, RequestContext};
use crate::net::user_agent::UserAgent;
use crate::warc::Store;

/// Maximum number of checkpoints, each of up to a megabyte, that wait to be sent. If the queue is
/// full, a checkpoint is dropped, and the crawl makes another a minute later.
const CHECKPOINTS: usize = 4;

#[derive(Debug)]
pub struct Work {
    pub(super) request_base: RequestBase,
    pub(super) capacity: usize,
    pub(super) context: Option<Arc<RequestContext>>,
    pub(super) running: RunningCrawls,
    pub(super) crawls: JoinSet<Option<WorkEvent>>,
    orders: MeasurementOrders,
    pub(super) outbox: Outbox,
    /// The files from which crawls can resume.
    pub(super) kept: CrawlFiles,
    pub(super) store: Option<Store>,
    /// The robots.txt of recently crawled sites.
    pub(super) robots: Arc<RobotsCache>,
    /// The external crawler, which replaces the agent's own crawler.
    pub(super) external: Option<ExternalCrawler>,
    pub(super) traces: Option<TraceSender>,
    pub(super) checkpoints: (mpsc::Sender<CrawlCheckpoint>, mpsc::Receiver<CrawlCheckpoint>),
    pub(super) permits: PermitRequests,
    pub(super) disks: AgentDisks,
    /// Cancelled when the agent stops. After that, a failed write of an outcome is no longer
    /// retried.
    pub(super) closing: CancellationToken,
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
                    self.deadline.end();
                    self.running.stop_all();
                    return WorkEvent::DeadlinePassed;
                }
            }
        }
    }

    /// Applies the welcome of a new session. Crawls whose leases the scheduler did not keep are
    /// stopped.
    pub(super) fn welcome(&mut self, welcome: &Welcome, deadline: BootTime) {
        METRICS.session_opened();
        self.deadline.begin(deadline);
        let kept: HashSet<LeaseKey> = welcome.kept.iter().map(LeaseKey::from).collect();
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

    /// Starts to check the free space, without waiting for the disk. Returns `true` if the results
    /// so far change whether the agent takes leases. [`Work::next`] reports later changes.
    pub(super) fn check_disk(&mut self) -> bool {
        self.disks.check(&mut self.outbox, self.store.as_ref())
    }

    fn note_space(&mut self) -> bool {
        self.disks.note_space(&mut self.outbox, self.store.as_ref())
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

impl Work {
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

    /// Number of running crawls, including those that are being stopped.
    pub(super) fn active_crawls(&self) -> u32 {
        u32::try_from(self.running.len()).unwrap_or(u32::MAX)
    }

    /// The leases that this agent holds: those of running crawls and of unacknowledged outcomes.
    pub(super) fn held(&self) -> Vec<HeldLease> {
        self.running.unstopped().chain(self.outbox.keys()).map(HeldLease::from).collect()
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
}

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
pub(super) struct RunningCrawls(HashMap<LeaseKey, RunningCrawl>);

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
    fn unstopped(&self) -> impl Iterator<Item = LeaseKey> {
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
    /// leases have ended. Returns `false` if a lease newer than `key` is being crawled. Tokens of
    /// different histories are not compared: the session grants leases only of the present history.
    pub(super) fn supersede(&self, key: LeaseKey) -> bool {
        let same_task = || self.0.iter().filter(|(other, _)| other.task_id == key.task_id);
        if same_task().any(|(other, _)| other.history == key.history && other.token > key.token) {
            return false;
        }
        same_task().for_each(|(_, crawl)| crawl.stop.cancel());
        true
    }

    /// The crawl of a lease that the scheduler names. The lease may be from before an upgrade of the
    /// scheduler, which had named no history when it granted the lease.
    fn named(&self, key: LeaseKey) -> Option<&RunningCrawl> {
        self.0.get(&key).or_else(|| self.0.get(&LeaseKey { history: 0, ..key }))
    }

    /// Stops the crawl of a lease that the scheduler took back.
    pub(super) fn cancel(&self, key: LeaseKey) {
        if let Some(crawl) = self.named(key) {
            tracing::info!(
                task.id = key.task_id,
                token = key.token,
                "a crawl is stopped: the scheduler took its lease back"
            );
            crawl.stop.cancel();
        }
    }

    /// Ends the crawl of a preempted lease. The lease occupies its slot until the agent returns it.
    pub(super) fn preempt(&self, key: LeaseKey, reason: &str) {
        if let Some(crawl) = self.named(key) {
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
    fn stop_all_but(&self, kept: &HashSet<LeaseKey>) {
        self.0.iter().filter(|(key, _)| !kept.contains(key)).for_each(|(_, crawl)| crawl.stop.cancel());
    }

    /// Tells every crawl to stop, but does not wait for them to end.
    fn stop_all(&self) {
        self.0.values().for_each(|crawl| crawl.stop.cancel());
    }
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::OutcomeReport;
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::*;
    use crate::session::active_session::ActiveSession;
    use crate::session::convert::release;
    use crate::session::reconnect::meanwhile;
    use crate::session::tests::request_base;

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
            let key = LeaseKey { task_id: 1, token: 2, history: 1 };
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
        let keys = [1, 2].map(|task_id| LeaseKey { task_id, token: 2, history: 1 });
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
