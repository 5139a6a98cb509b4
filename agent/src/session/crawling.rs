//! One lease's crawl: from the file it goes on from to an outcome on the disk, or a state that another agent goes on from.

use std::sync::Arc;
use std::time::Duration;

use landfall_proto::v1::{CrawlCheckpoint, OutcomeReport};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::claims::{self, Claim};
use super::wire;
use crate::context::Context;
use crate::crawl::{self, Alone, Ended, Job, Keep};
use crate::kept_crawls::KeptCrawls;
use crate::outbox::{Disk, LeaseKey};
use crate::warc::Store;

/// What is left of a crawl.
#[derive(Debug)]
pub(super) enum CrawlEnd {
    /// An outcome, which is on the disk.
    Outcome(OutcomeReport),
    /// The lease goes back, with this state if there is one.
    Stopped(Option<CrawlCheckpoint>),
    /// The lease goes back with this state if there is one: the site is to be left alone for so long.
    Paused(Option<CrawlCheckpoint>, Duration),
    /// The lease has ended.
    NotPermitted,
    /// The lease goes back, for this reason.
    Broken(String),
}

/// What a crawl needs.
pub(super) struct Crawling {
    pub(super) key: LeaseKey,
    pub(super) job: Job,
    /// How far another agent has come; empty when none has begun.
    pub(super) checkpoint: Vec<u8>,
    pub(super) context: Arc<Context>,
    /// Where its outcome goes.
    pub(super) disk: Disk,
    /// Where it is kept until then.
    pub(super) kept: KeptCrawls,
    /// Where its pages are stored.
    pub(super) store: Option<Store>,
    /// Where its checkpoints go.
    pub(super) checkpoints: mpsc::Sender<CrawlCheckpoint>,
    /// Where it asks for its address.
    pub(super) claims: mpsc::Sender<Claim>,
    /// Whether nothing is heard of the scheduler.
    pub(super) alone: Alone,
    /// Cancelled when the scheduler asks for its lease.
    pub(super) recalled: CancellationToken,
}

impl Crawling {
    /// Crawls until the site ends or `stop` is cancelled. An outcome that cannot be written is not waited for once `closing` is.
    pub(super) async fn run(self, stop: CancellationToken, closing: CancellationToken) -> CrawlEnd {
        let Self { key, job, checkpoint, context, disk, kept, store, checkpoints, claims, alone, recalled } = self;
        let file = match kept.file_of(key).await {
            Ok(file) => file,
            Err(error) => return CrawlEnd::Broken(format!("the folder of crawls: {error}")),
        };
        let offer = Box::new(move |standing| {
            // Where it is full, the next one takes its place; where it is closed, nobody wants it any more.
            let _taken = checkpoints.try_send(wire::checkpoint(key, standing));
        });
        let recorder = store.map(|store| store.recorder(&job.name, Some(key.task_id)));
        let keep = Keep { file: Some(file), checkpoint, offer: Some(offer), recorder, recalled, ..Keep::default() };
        let outcome = match crawl::run(job, keep, claims::permits(key, claims, alone), context, stop).await {
            Ended::Outcome(outcome) => outcome,
            Ended::Stopped(standing) => {
                return CrawlEnd::Stopped(standing.map(|standing| wire::checkpoint(key, standing)));
            }
            Ended::Paused(standing, pause) => {
                return CrawlEnd::Paused(standing.map(|standing| wire::checkpoint(key, standing)), pause);
            }
            Ended::NotPermitted => return CrawlEnd::NotPermitted,
            Ended::Broken(reason) => return CrawlEnd::Broken(reason),
        };
        match disk.keep(wire::outcome(key, outcome), &closing).await {
            Some(report) => {
                kept.forget(key).await;
                CrawlEnd::Outcome(report)
            }
            None => CrawlEnd::Stopped(None),
        }
    }
}

/// What a panic says.
pub(super) fn panic_message(payload: Box<dyn std::any::Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(said) => *said,
        Err(payload) => payload.downcast_ref::<&str>().map_or("a panic without a message", |said| said).to_owned(),
    }
}
