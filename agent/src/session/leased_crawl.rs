//! Starts and runs the crawl of a granted lease, with the agent's own crawler or the operator's
//! command. The crawl ends with an outcome on the disk, or with a state from which another agent
//! can resume.

use std::sync::Arc;
use std::time::SystemTime;

use landfall_proto::traces::{Attribute, Span, SpanKey, TraceSender};
use landfall_proto::v1::session_request::Message as Up;
use landfall_proto::v1::{CrawlCheckpoint, CrawlOrder};
use tokio::sync::mpsc;
use tokio::task;
use tokio_util::sync::CancellationToken;

use super::convert::{self, GrantedLease};
use super::permits_and_events::{self, WorkEvent};
use super::work::{RunningCrawl, Work};
use crate::crawl::{
    self, CrawlEnd, CrawlSnapshot, CrawlStorage, ExternalCrawler, LeasedCrawl, Outcome, OutcomeKind, RobotsCache,
};
use crate::disk::crawl_files::{CrawlFiles, LeaseKey};
use crate::disk::outbox::OutcomeWriter;
use crate::machine::clock;
use crate::metrics::{CrawlResult, Label as _, METRICS};
use crate::warc::Store;

struct CrawlRunner {
    pub(super) crawl: LeasedCrawl,
    pub(super) crawler: Crawler,
    pub(super) writer: OutcomeWriter,
    pub(super) traces: Option<TraceSender>,
}

impl CrawlRunner {
    /// Crawls until the crawl ends or `stop` is cancelled. Returns `None` if the scheduler has
    /// already ended the lease. After `closing` is cancelled, a failed write of the outcome is no
    /// longer retried.
    pub(super) async fn run(self, stop: CancellationToken, closing: CancellationToken) -> Option<WorkEvent> {
        let Self { crawl, crawler, writer, traces } = self;
        let (key, site, began) = (crawl.key, crawl.job.name.clone(), clock::wall());
        let at = |snapshot: Option<CrawlSnapshot>| snapshot.map(|snapshot| convert::checkpoint(key, snapshot));
        let end = crawler.crawl(crawl, stop).await;
        METRICS.crawl_ended(result_of(&end));
        if let Some(traces) = traces {
            traces.send(span(key, site, began, &end));
        }
        Some(match end {
            CrawlEnd::Outcome(outcome) => match writer.keep(convert::outcome(key, outcome), &closing).await {
                Some(report) => {
                    crawler.forget(key).await;
                    WorkEvent::Outcome(report)
                }
                None => WorkEvent::Unfinished(key, None),
            },
            CrawlEnd::Stopped(snapshot) => WorkEvent::Unfinished(key, at(snapshot)),
            CrawlEnd::Paused(snapshot, pause) => WorkEvent::Paused(key, at(snapshot), pause),
            CrawlEnd::NotPermitted => return None,
            CrawlEnd::Crashed(crash) => {
                tracing::error!(task.id = key.task_id, token = key.token, crash, "a crawler crashed");
                WorkEvent::Crashed(key, crash)
            }
            CrawlEnd::Broken(reason) => broken(key, &reason),
        })
    }
}

/// The two kinds of crawlers for leased sites. Both kinds get a [`LeasedCrawl`], and their crawls
/// end in the same ways.
enum Crawler {
    Own(OwnCrawler),
    External(ExternalCrawler),
}

impl Crawler {
    /// Crawls until the crawl ends or `stop` is cancelled.
    pub(super) async fn crawl(&self, crawl: LeasedCrawl, stop: CancellationToken) -> CrawlEnd {
        match self {
            Self::Own(crawler) => crawler.crawl(crawl, stop).await,
            Self::External(crawler) => crawler.crawl(crawl, &stop).await,
        }
    }

    /// Removes the files from which the crawl could resume. Call this after its outcome is stored.
    pub(super) async fn forget(&self, key: LeaseKey) {
        match self {
            Self::Own(crawler) => crawler.kept.forget(key).await,
            // An external crawl cannot resume, so there are no files to remove.
            Self::External(_) => {}
        }
    }
}

/// The agent's own crawler. This crawler resumes from its file or a checkpoint, and sends
/// checkpoints from which another agent can resume.
struct OwnCrawler {
    pub(super) kept: CrawlFiles,
    pub(super) store: Option<Store>,
    pub(super) robots: Arc<RobotsCache>,
    pub(super) checkpoints: mpsc::Sender<CrawlCheckpoint>,
}

impl OwnCrawler {
    async fn crawl(&self, crawl: LeasedCrawl, stop: CancellationToken) -> CrawlEnd {
        let LeasedCrawl { key, job, checkpoint, stores_pages, permits, context, preempted } = crawl;
        let file = match self.kept.file_of(key).await {
            Ok(file) => file,
            Err(error) => return CrawlEnd::Broken(format!("the folder of crawls: {error}")),
        };
        let checkpoints = self.checkpoints.clone();
        let on_snapshot = Box::new(move |snapshot| {
            // Errors are ignored. If the channel is full, a later checkpoint replaces this one; if
            // it is closed, no checkpoint is needed.
            let _taken = checkpoints.try_send(convert::checkpoint(key, snapshot));
        });
        let store = self.store.as_ref().filter(|_| stores_pages);
        let storage = CrawlStorage {
            file: Some(file),
            history: key.history,
            checkpoint,
            on_snapshot: Some(on_snapshot),
            recorder: store.map(|store| store.recorder(&job.name, Some(key.task_id))),
            preempted,
            ..CrawlStorage::default()
        };
        crawl::run(job, storage, permits, context, Arc::clone(&self.robots), stop).await
    }
}

/// The span of a crawl, which is a child of the lease's span.
fn span(key: LeaseKey, site: String, began: SystemTime, end: &CrawlEnd) -> Span {
    let result = result_of(end);
    let mut attributes =
        vec![("landfall.site", Attribute::Text(site)), ("landfall.result", Attribute::Text(result.word().to_owned()))];
    if let CrawlEnd::Outcome(Outcome { requests, pages, bytes, errors, .. }) = end {
        let numbers = [
            ("landfall.requests", (*requests).into()),
            ("landfall.pages", (*pages).into()),
            ("landfall.bytes", *bytes),
            ("landfall.errors", (*errors).into()),
        ];
        attributes.extend(numbers.map(|(key, number)| (key, Attribute::Number(number))));
    }
    let failed = matches!(result, CrawlResult::Unreachable | CrawlResult::Crashed | CrawlResult::Broken);
    let failure = match end {
        CrawlEnd::Outcome(outcome) => outcome.message.clone(),
        CrawlEnd::Crashed(reason) | CrawlEnd::Broken(reason) => reason.clone(),
        CrawlEnd::Stopped(_) | CrawlEnd::Paused(..) | CrawlEnd::NotPermitted => String::new(),
    };
    Span {
        task: key.task_id,
        key: SpanKey::Crawl(key.token),
        parent: Some(SpanKey::Lease(key.token)),
        name: "crawl".to_owned(),
        began,
        ended: clock::wall(),
        attributes,
        failure: failed.then_some(failure),
    }
}

fn result_of(end: &CrawlEnd) -> CrawlResult {
    match end {
        CrawlEnd::Outcome(Outcome { kind, .. }) => match kind {
            OutcomeKind::Complete => CrawlResult::Complete,
            OutcomeKind::Truncated(_) => CrawlResult::Truncated,
            OutcomeKind::Blocked(_) => CrawlResult::Blocked,
            OutcomeKind::Unreachable => CrawlResult::Unreachable,
        },
        // `NotPermitted`: the scheduler refused a permit for the site's address, and has ended the
        // lease.
        CrawlEnd::Stopped(_) | CrawlEnd::NotPermitted => CrawlResult::HandedBack,
        CrawlEnd::Paused(..) => CrawlResult::Paused,
        CrawlEnd::Crashed(_) => CrawlResult::Crashed,
        CrawlEnd::Broken(_) => CrawlResult::Broken,
    }
}

/// Returns the lease for a reason that is not the site's fault, so that another agent can crawl the
/// site.
fn broken(key: LeaseKey, reason: &str) -> WorkEvent {
    tracing::error!(task.id = key.task_id, token = key.token, reason, "a crawl cannot continue on this agent");
    WorkEvent::Unfinished(key, None)
}

fn panic_message(payload: Box<dyn std::any::Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast_ref::<&str>().map_or("a panic without a message", |text| text).to_owned(),
    }
}

impl Work {
    /// Number of slots in which a crawl may start; zero while the agent's disks permit none.
    pub(super) fn free_slots(&self) -> usize {
        if self.disks.paused().is_some() { 0 } else { self.running.free_slots(self.capacity, self.outbox.len()) }
    }

    /// Starts the crawl of a granted lease. Returns a reply instead if the crawl cannot start, or
    /// if its outcome is already known.
    pub(super) fn crawl(&mut self, mut order: CrawlOrder) -> Option<Up> {
        let key = LeaseKey::from(&order);
        if let Some(outcome) = self.outbox.get(key) {
            return Some(Up::Outcome(outcome.clone()));
        }
        if self.running.contains(key) {
            return None;
        }
        let checkpoint = std::mem::take(&mut order.checkpoint);
        let (Some(context), Some(granted)) = (self.context.clone(), convert::granted(order)) else {
            tracing::warn!(
                task.id = key.task_id,
                "a lease is handed back: there is no contact URL, or its site or policy is invalid"
            );
            return Some(convert::release(key));
        };
        let GrantedLease { job, store, product, user_agent } = granted;
        let context = self.request_base.context_of(context, user_agent, product.as_ref());
        if !self.running.supersede(key) || self.free_slots() == 0 {
            return Some(convert::release(key));
        }
        let (stop, preempt) = (CancellationToken::new(), CancellationToken::new());
        let permits = permits_and_events::permits_of_lease(key, self.permits.sender(), self.deadline.silence().clone());
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
            // A machine that slept finds its requests and its leases timed out at once. What it says
            // of the site then is no outcome, so another agent crawls the site.
            Ok((_, Some(WorkEvent::Outcome(report))))
                if report.kind() == landfall_proto::v1::OutcomeKind::Unreachable && self.deadline.has_passed() =>
            {
                Some(WorkEvent::Unfinished(key, None))
            }
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
