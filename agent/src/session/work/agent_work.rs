//! The agent's work for the scheduler, across sessions: its events, its welcome by a session, and
//! its end.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use landfall_proto::traces::TraceSender;
use landfall_proto::v1::{CrawlCheckpoint, MeasureOrder, MeasurementReport, Welcome};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::disks::AgentDisks;
use super::measurement_orders::MeasurementOrders;
use super::running_crawls::RunningCrawls;
use crate::crawl::{ExternalCrawler, RobotsCache};
use crate::disk::crawl_files::CrawlFiles;
use crate::disk::lease_key::LeaseKey;
use crate::disk::outbox::Outbox;
use crate::machine::clock::BootTime;
use crate::metrics::METRICS;
use crate::net::request_context::{RequestBase, RequestContext};
use crate::net::user_agent::UserAgent;
use crate::session::deadline::LeaseDeadline;
use crate::session::event::WorkEvent;
use crate::session::permits::PermitRequests;
use crate::warc::Store;

/// Maximum number of checkpoints, each of up to a megabyte, that wait to be sent. If the queue is
/// full, a checkpoint is dropped, and the crawl makes another a minute later.
const CHECKPOINTS: usize = 4;

#[derive(Debug)]
pub struct Work {
    pub(super) request_base: RequestBase,
    pub(super) capacity: usize,
    pub(super) context: Option<Arc<RequestContext>>,
    pub(in crate::session) running: RunningCrawls,
    pub(super) crawls: JoinSet<Option<WorkEvent>>,
    orders: MeasurementOrders,
    pub(in crate::session) outbox: Outbox,
    /// The files from which crawls can resume.
    pub(super) kept: CrawlFiles,
    pub(super) store: Option<Store>,
    /// The robots.txt of recently crawled sites.
    pub(super) robots: Arc<RobotsCache>,
    /// The external crawler, which replaces the agent's own crawler.
    pub(super) external: Option<ExternalCrawler>,
    pub(super) traces: Option<TraceSender>,
    pub(super) checkpoints: (mpsc::Sender<CrawlCheckpoint>, mpsc::Receiver<CrawlCheckpoint>),
    pub(in crate::session) permits: PermitRequests,
    pub(super) disks: AgentDisks,
    /// Cancelled when the agent stops. After that, a failed write of an outcome is no longer
    /// retried.
    pub(super) closing: CancellationToken,
    pub(in crate::session) deadline: LeaseDeadline,
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
    pub(in crate::session) fn grace(&self) -> Duration {
        self.external.as_ref().map(ExternalCrawler::grace).unwrap_or_default()
    }

    /// Waits for the next event. Cancel-safe.
    pub(in crate::session) async fn next(&mut self) -> WorkEvent {
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

    /// Applies the welcome of a new session. Crawls whose leases the scheduler did not keep are
    /// stopped.
    pub(in crate::session) fn welcome(&mut self, welcome: &Welcome, deadline: BootTime) {
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

    /// Starts to check the free space, without waiting for the disk. Returns `true` if the results
    /// so far change whether the agent takes leases. [`Work::next`] reports later changes.
    pub(in crate::session) fn check_disk(&mut self) -> bool {
        self.disks.check(&mut self.outbox, self.store.as_ref())
    }

    fn note_space(&mut self) -> bool {
        self.disks.note_space(&mut self.outbox, self.store.as_ref())
    }

    /// Starts to carry out a measurement order. Returns a report if the order cannot be carried
    /// out.
    pub(in crate::session) fn measure(&mut self, order: MeasureOrder) -> Option<MeasurementReport> {
        self.orders.begin(order, self.context.clone())
    }

    /// Drops the measurements of an ended session. The scheduler orders them again in the next
    /// session.
    pub(in crate::session) fn abandon_orders(&mut self) {
        self.orders.abandon();
    }

    /// Stops all work because the agent is stopping. Failed writes of outcomes are not retried.
    pub(in crate::session) fn stop_all(&mut self) {
        self.closing.cancel();
        self.give_up();
    }

    /// Stops all work because the agent is stopping, or because another process runs as this agent.
    pub(in crate::session) fn give_up(&mut self) {
        self.deadline.clear();
        self.running.stop_all();
        self.abandon_orders();
    }
}

#[cfg(test)]
mod tests {
    use landfall_proto::v1::{HeldLease, OutcomeReport};
    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::super::running_crawls::RunningCrawl;
    use super::*;
    use crate::session::active_session::ActiveSession;
    use crate::session::convert::leases::release;
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
