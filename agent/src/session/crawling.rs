//! One lease's crawl: from the file it goes on from to an outcome on the disk, or a state that another agent goes on from.

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
    /// How far another agent has come; empty when none has begun.
    pub(super) checkpoint: Vec<u8>,
    pub(super) context: Arc<Context>,
    pub(super) disk: Disk,
    /// Where it is kept until then.
    pub(super) kept: KeptCrawls,
    pub(super) store: Option<Store>,
    pub(super) checkpoints: mpsc::Sender<CrawlCheckpoint>,
    pub(super) claims: mpsc::Sender<Claim>,
    pub(super) alone: Alone,
    /// Cancelled when the scheduler asks for its lease.
    pub(super) recalled: CancellationToken,
}

impl Crawling {
    /// Crawls until the site ends or `stop` is cancelled; `None` where the lease has ended. An outcome that cannot be written is not
    /// waited for once `closing` is cancelled.
    pub(super) async fn run(self, stop: CancellationToken, closing: CancellationToken) -> Option<Finished> {
        let Self { key, job, checkpoint, context, disk, kept, store, checkpoints, claims, alone, recalled } = self;
        let file = match kept.file_of(key).await {
            Ok(file) => file,
            Err(error) => return Some(broken(key, &format!("the folder of crawls: {error}"))),
        };
        let offer = Box::new(move |standing| {
            // Where it is full, the next one takes its place; where it is closed, nobody wants it any more.
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

/// Not for a reason of the task's: another agent may have no trouble with it.
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
