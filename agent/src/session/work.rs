//! The agent's work for the scheduler: crawls, measurements, and unacknowledged outcomes. It
//! outlives sessions.
//!
//! Invariants: At most `capacity` crawls run, not counting those that are being stopped. Each lease
//! is crawled at most once. If a task had several leases, only the newest is crawled. The number of
//! unacknowledged outcomes is limited. At the deadline of the leases every crawl is stopped.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use landfall_proto::traces::TraceSender;
use landfall_proto::v1::{CrawlCheckpoint, Heartbeat, HeldLease, Welcome};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{self, JoinSet};
use tokio_util::sync::CancellationToken;

use super::deadline::LeaseDeadline;
use super::event::WorkEvent;
use super::leased_crawl::panic_message;
use super::own_or_external::{Crawler, OwnCrawler};
use super::permits::PermitRequests;
use crate::crawl::ExternalCrawler;
use crate::disk::crawl_files::CrawlFiles;
use crate::disk::free_space::{FullestDisk, LimitedDisk};
use crate::disk::lease_key::LeaseKey;
use crate::disk::outbox::Outbox;
use crate::metrics::{CrawlResult, METRICS, WorkState};
use crate::net::request_context::{RequestBase, RequestContext};
use crate::net::user_agent::UserAgent;
use crate::probe::address_lock::Addresses;
use crate::session::clock::{self, BootTime};
use crate::warc::Store;

mod leases;
mod measuring;

use leases::RunningCrawl;
use measuring::{BEACON_ORDERS, MeasuredOrder, SITE_ORDERS};

/// Maximum number of checkpoints, each of up to a megabyte, that wait to be sent. If the queue is
/// full, a checkpoint is dropped, and the crawl makes another a minute later.
const CHECKPOINTS: usize = 4;

#[derive(Debug)]
pub struct Work {
    request_base: RequestBase,
    capacity: usize,
    context: Option<Arc<RequestContext>>,
    running: HashMap<LeaseKey, RunningCrawl>,
    crawls: JoinSet<Option<WorkEvent>>,
    measures: JoinSet<MeasuredOrder>,
    /// The number of the order that each tokio task in `measures` carries out. It is needed to
    /// report the order if the tokio task panics.
    orders: HashMap<task::Id, i64>,
    site_places: Arc<Semaphore>,
    beacon_places: Arc<Semaphore>,
    /// The reasons for refusing a beacon that have already been logged as warnings.
    warned: HashSet<&'static str>,
    /// The addresses that orders measure. They are kept for the orders of later sessions.
    addresses: Arc<Addresses>,
    pub(super) outbox: Outbox,
    /// The files from which crawls can resume.
    kept: CrawlFiles,
    store: Option<Store>,
    /// The external crawler, which replaces the agent's own crawler.
    external: Option<ExternalCrawler>,
    traces: Option<TraceSender>,
    checkpoints: (mpsc::Sender<CrawlCheckpoint>, mpsc::Receiver<CrawlCheckpoint>),
    pub(super) permits: PermitRequests,
    /// Why the agent takes no lease, according to the last check of the disk; `None` if it takes
    /// leases.
    paused: Option<String>,
    /// The disk of the external crawler's output.
    output_disk: Option<LimitedDisk>,
    /// The fullest of the disks of the outbox, the store and the external crawler. Heartbeats
    /// report it.
    disk: FullestDisk,
    /// Cancelled when the agent stops. From then on, a failed write of an outcome is no longer
    /// retried.
    closing: CancellationToken,
    pub(super) deadline: LeaseDeadline,
}

impl Work {
    pub fn new(request_base: RequestBase, capacity: u32, outbox: Outbox, kept: CrawlFiles) -> Self {
        Self {
            disk: FullestDisk::of([outbox.folder().to_owned()]),
            context: request_base.user_agent.clone().map(|user_agent| Arc::new(request_base.context(user_agent))),
            request_base,
            capacity: usize::try_from(capacity).unwrap_or(usize::MAX),
            running: HashMap::new(),
            crawls: JoinSet::new(),
            measures: JoinSet::new(),
            orders: HashMap::new(),
            site_places: Arc::new(Semaphore::new(SITE_ORDERS)),
            beacon_places: Arc::new(Semaphore::new(BEACON_ORDERS)),
            warned: HashSet::new(),
            addresses: Arc::default(),
            outbox,
            kept,
            store: None,
            external: None,
            traces: None,
            checkpoints: mpsc::channel(CHECKPOINTS),
            permits: PermitRequests::default(),
            paused: None,
            output_disk: None,
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
        Self { output_disk: external.as_ref().map(ExternalCrawler::disk), external, ..self }.watching_disks()
    }

    /// Sends a span for each crawl. With `None`, no spans are sent.
    #[must_use]
    pub fn tracing_with(self, traces: Option<TraceSender>) -> Self {
        Self { traces, ..self }
    }

    fn watching_disks(self) -> Self {
        let stores = self.store.iter().map(Store::folder).chain(self.external.iter().map(ExternalCrawler::folder));
        let folders: Vec<_> = stores.chain([self.outbox.folder()]).map(Path::to_owned).collect();
        Self { disk: FullestDisk::of(folders), ..self }
    }

    /// Additional time for which a stopping agent waits for its external crawler; zero without one.
    pub(super) fn grace(&self) -> Duration {
        self.external.as_ref().map(ExternalCrawler::grace).unwrap_or_default()
    }

    fn crawler(&self) -> Crawler {
        match &self.external {
            Some(external) => Crawler::External(external.clone()),
            None => Crawler::Own(OwnCrawler {
                kept: self.kept.clone(),
                store: self.store.clone(),
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
                () = LimitedDisk::one_ended(self.output_disk.as_mut()) => {
                    if self.note_space() {
                        return WorkEvent::SpaceChecked;
                    }
                }
                Some(joined) = self.measures.join_next_with_id() => {
                    if let Some(report) = self.measurement_ended(joined) {
                        return WorkEvent::Measured(report);
                    }
                }
                () = self.deadline.passed() => {
                    self.deadline.clear();
                    self.stop_crawls();
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
            paused: self.paused.is_some(),
            disk: self.disk.newest(),
        }
    }

    fn crawl_ended(&mut self, joined: Result<(task::Id, Option<WorkEvent>), task::JoinError>) -> Option<WorkEvent> {
        let id = joined.as_ref().map_or_else(task::JoinError::id, |(id, _)| *id);
        let key = self.running.iter().find(|(_, crawl)| crawl.task == id).map(|(key, _)| *key)?;
        self.running.remove(&key);
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
        let going_on = self.running.iter().filter(|(_, crawl)| !crawl.stop.is_cancelled()).map(|(key, _)| *key);
        going_on.chain(self.outbox.keys()).map(HeldLease::from).collect()
    }

    /// Applies the welcome of a new session. Crawls whose leases the scheduler did not keep are
    /// stopped.
    pub(super) fn welcome(&mut self, welcome: &Welcome, deadline: BootTime) {
        METRICS.session_opened();
        self.deadline.begin(deadline);
        let kept: HashSet<LeaseKey> =
            welcome.kept.iter().map(|held| LeaseKey { task_id: held.task_id, token: held.token }).collect();
        for (key, crawl) in &self.running {
            if !kept.contains(key) {
                crawl.stop.cancel();
            }
        }
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
        self.outbox.check_space();
        self.output_disk.iter_mut().for_each(LimitedDisk::begin);
        self.disk.begin();
        self.note_space()
    }

    fn note_space(&mut self) -> bool {
        let output = || self.output_disk.as_mut().and_then(LimitedDisk::paused);
        let paused = self.outbox.paused().or_else(output).or_else(|| self.store.as_ref().and_then(Store::paused));
        let changed = paused.is_some() != self.paused.is_some();
        match &paused {
            Some(reason) if changed => tracing::warn!(reason, "crawling pauses"),
            None if changed => tracing::info!("crawling resumes"),
            _ => {}
        }
        self.paused = paused;
        changed
    }

    pub(super) fn heartbeat(&self, sequence: u64) -> Heartbeat {
        let paused = self.paused.clone().unwrap_or_default();
        let disk = self.disk.newest();
        Heartbeat {
            sequence,
            active_crawls: self.active_crawls(),
            paused,
            free_slots: Some(u32::try_from(self.free_slots()).unwrap_or(u32::MAX)),
            outcomes_waiting: u32::try_from(self.outbox.len()).unwrap_or(u32::MAX),
            sent_at: Some(clock::wall().into()),
            disk_free_bytes: disk.map(|disk| disk.free),
            disk_size_bytes: disk.map(|disk| disk.size),
        }
    }

    /// Tells every crawl to stop, but does not wait for them to end.
    fn stop_crawls(&self) {
        self.running.values().for_each(|crawl| crawl.stop.cancel());
    }

    /// Stops all work because the agent is stopping. Failed writes of outcomes are not retried.
    pub(super) fn stop_all(&mut self) {
        self.closing.cancel();
        self.give_up();
    }

    /// Stops all work because the agent is stopping, or because another process runs as this agent.
    pub(super) fn give_up(&mut self) {
        self.deadline.clear();
        self.stop_crawls();
        self.abandon_orders();
    }
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::measurement_failure::Reason;
    use landfall_proto::v1::measurement_report::Result as Reported;
    use landfall_proto::v1::{BeaconTarget, MeasureOrder, OutcomeReport, measure_order};
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::super::tests::request_base;
    use super::super::{ActiveSession, meanwhile};
    use super::*;
    use crate::config::OutboxConfig;
    use crate::session::convert::leases::release;

    fn work() -> (Work, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let outbox = Outbox::open(&OutboxConfig::in_folder(folder.path())).unwrap();
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
        work.stop_crawls();
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

    #[tokio::test]
    async fn a_refused_beacon_is_reported_with_a_remedy_and_logged_once() {
        let (mut work, _folder) = work();
        work.context = Some(Arc::new(work.request_base.context(UserAgent::new("https://example.org/bot").unwrap())));
        for (order_id, address) in [(1, "198.18.0.5"), (2, "198.19.0.5")] {
            let beacon = BeaconTarget { agent_id: 9, url: format!("http://{address}:7180/") };
            let interval = Some(prost_types::Duration::default());
            let target = Some(measure_order::Target::Beacon(beacon));
            let order = MeasureOrder { order_id, target, samples: 1, interval, metric: 1, ..MeasureOrder::default() };
            assert_eq!(work.measure(order), None);
            let WorkEvent::Measured(report) = work.next().await else { panic!("no report") };
            let Some(Reported::Failure(failure)) = report.result else { panic!("{report:?}") };
            assert_eq!(failure.reason(), Reason::Guard, "{failure:?}");
            let message = &failure.message;
            assert!(message.contains(address) && message.contains("allow_net = [\"198.18.0.0/15\"]"), "{message}");
        }
        assert_eq!(work.warned.len(), 1);
    }

    #[tokio::test]
    async fn a_measurement_that_panics_is_reported_and_its_order_removed() {
        let (mut work, _folder) = work();
        let measuring = work.measures.spawn(async { panic!("on purpose") });
        work.orders.insert(measuring.id(), 7);
        let WorkEvent::Measured(report) = work.next().await else { panic!("no report") };
        assert!(matches!((report.order_id, report.result), (7, Some(Reported::Failure(_)))));
        assert!(work.orders.is_empty());
    }
}
