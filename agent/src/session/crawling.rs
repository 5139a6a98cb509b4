//! Runs the crawl of one lease: resumes from its file or checkpoint, and ends with an outcome on
//! the disk, or with a state from which another agent can resume.

use std::sync::Arc;

use landfall_proto::v1::CrawlCheckpoint;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::claims::{self, PendingClaim};
use super::event::WorkEvent;
use super::wire;
use crate::crawl::{self, CrawlEnd, CrawlSnapshot, CrawlStorage, Job, SchedulerSilence};
use crate::disk::crawl_files::CrawlFiles;
use crate::disk::outbox::{LeaseKey, OutcomeWriter};
use crate::net::context::RequestContext;
use crate::warc::Store;

pub(super) struct LeaseCrawl {
    pub(super) key: LeaseKey,
    pub(super) job: Job,
    /// The checkpoint of another agent; empty if no agent has started the crawl.
    pub(super) checkpoint: Vec<u8>,
    pub(super) context: Arc<RequestContext>,
    pub(super) writer: OutcomeWriter,
    pub(super) kept: CrawlFiles,
    pub(super) store: Option<Store>,
    pub(super) checkpoints: mpsc::Sender<CrawlCheckpoint>,
    pub(super) claims: mpsc::Sender<PendingClaim>,
    pub(super) silence: SchedulerSilence,
    /// Cancelled when the scheduler preempts the lease.
    pub(super) preempted: CancellationToken,
}

impl LeaseCrawl {
    /// Crawls until the crawl ends or `stop` is cancelled. Returns `None` if the lease has ended.
    /// After `closing` is cancelled, does not wait for an outcome that cannot be written.
    pub(super) async fn run(self, stop: CancellationToken, closing: CancellationToken) -> Option<WorkEvent> {
        let Self { key, job, checkpoint, context, writer, kept, store, checkpoints, claims, silence, preempted } = self;
        let file = match kept.file_of(key).await {
            Ok(file) => file,
            Err(error) => return Some(broken(key, &format!("the folder of crawls: {error}"))),
        };
        let on_snapshot = Box::new(move |snapshot| {
            // Ignore errors: if the channel is full, the next checkpoint replaces this one; if it
            // is closed, no checkpoint is needed.
            let _taken = checkpoints.try_send(wire::checkpoint(key, snapshot));
        });
        let recorder = store.map(|store| store.recorder(&job.name, Some(key.task_id)));
        let storage = CrawlStorage {
            file: Some(file),
            checkpoint,
            on_snapshot: Some(on_snapshot),
            recorder,
            preempted,
            ..CrawlStorage::default()
        };
        let at = |snapshot: Option<CrawlSnapshot>| snapshot.map(|snapshot| wire::checkpoint(key, snapshot));
        Some(match crawl::run(job, storage, claims::permits(key, claims, silence), context, stop).await {
            CrawlEnd::Outcome(outcome) => match writer.keep(wire::outcome(key, outcome), &closing).await {
                Some(report) => {
                    kept.forget(key).await;
                    WorkEvent::Outcome(report)
                }
                None => WorkEvent::Unfinished(key, None),
            },
            CrawlEnd::Stopped(snapshot) => WorkEvent::Unfinished(key, at(snapshot)),
            CrawlEnd::Paused(snapshot, pause) => WorkEvent::Paused(key, at(snapshot), pause),
            CrawlEnd::NotPermitted => return None,
            CrawlEnd::Broken(reason) => broken(key, &reason),
        })
    }
}

/// Ends the lease for a reason that is not the site's fault, so that another agent can try.
fn broken(key: LeaseKey, reason: &str) -> WorkEvent {
    tracing::error!(task.id = key.task_id, token = key.token, reason, "a crawl cannot continue on this agent");
    WorkEvent::Unfinished(key, None)
}

pub(super) fn panic_message(payload: Box<dyn std::any::Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast_ref::<&str>().map_or("a panic without a message", |text| text).to_owned(),
    }
}
