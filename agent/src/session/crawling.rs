//! One lease's crawl: from the file it resumes to an outcome on the disk, or a state from which
//! another agent can resume.

use std::sync::Arc;

use landfall_proto::v1::CrawlCheckpoint;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::claims::{self, Claim};
use super::finished::Finished;
use super::wire;
use crate::crawl::{self, Alone, Ended, Job, Keep, Standing};
use crate::disk::kept_crawls::KeptCrawls;
use crate::disk::outbox::{Disk, LeaseKey};
use crate::net::context::Context;
use crate::warc::Store;

/// What a crawl needs.
pub(super) struct Crawling {
    pub(super) key: LeaseKey,
    pub(super) job: Job,
    /// Another agent's checkpoint; empty if no agent has started the crawl.
    pub(super) checkpoint: Vec<u8>,
    pub(super) context: Arc<Context>,
    pub(super) disk: Disk,
    /// Where the crawl's state is stored until then.
    pub(super) kept: KeptCrawls,
    pub(super) store: Option<Store>,
    pub(super) checkpoints: mpsc::Sender<CrawlCheckpoint>,
    pub(super) claims: mpsc::Sender<Claim>,
    pub(super) alone: Alone,
    /// Cancelled when the scheduler recalls its lease.
    pub(super) recalled: CancellationToken,
}

impl Crawling {
    /// Crawls until the site ends or `stop` is cancelled; returns `None` where the lease has ended.
    /// Once `closing` is cancelled, it does not wait for an outcome that cannot be written.
    pub(super) async fn run(self, stop: CancellationToken, closing: CancellationToken) -> Option<Finished> {
        let Self { key, job, checkpoint, context, disk, kept, store, checkpoints, claims, alone, recalled } = self;
        let file = match kept.file_of(key).await {
            Ok(file) => file,
            Err(error) => return Some(broken(key, &format!("the folder of crawls: {error}"))),
        };
        let offer = Box::new(move |standing| {
            // If the channel is full, the next checkpoint replaces this one; if it is closed, none
            // is needed.
            let _taken = checkpoints.try_send(wire::checkpoint(key, standing));
        });
        let recorder = store.map(|store| store.recorder(&job.name, Some(key.task_id)));
        let keep = Keep { file: Some(file), checkpoint, offer: Some(offer), recorder, recalled, ..Keep::default() };
        let at = |standing: Option<Standing>| standing.map(|standing| wire::checkpoint(key, standing));
        Some(match crawl::run(job, keep, claims::permits(key, claims, alone), context, stop).await {
            Ended::Outcome(outcome) => match disk.keep(wire::outcome(key, outcome), &closing).await {
                Some(report) => {
                    kept.forget(key).await;
                    Finished::Outcome(report)
                }
                None => Finished::Unfinished(key, None),
            },
            Ended::Stopped(standing) => Finished::Unfinished(key, at(standing)),
            Ended::Paused(standing, pause) => Finished::Paused(key, at(standing), pause),
            Ended::NotPermitted => return None,
            Ended::Broken(reason) => broken(key, &reason),
        })
    }
}

/// Not the task's fault: another agent may succeed.
fn broken(key: LeaseKey, reason: &str) -> Finished {
    tracing::error!(task.id = key.task_id, token = key.token, reason, "a crawl cannot go on here");
    Finished::Unfinished(key, None)
}

pub(super) fn panic_message(payload: Box<dyn std::any::Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(said) => *said,
        Err(payload) => payload.downcast_ref::<&str>().map_or("a panic without a message", |said| said).to_owned(),
    }
}
