//! Runs the crawl of one lease, which ends with an outcome on the disk, or with a state from which
//! another agent can resume.

use tokio_util::sync::CancellationToken;

use super::crawler::{Crawler, LeasedCrawl};
use super::event::WorkEvent;
use super::wire;
use crate::crawl::{CrawlEnd, CrawlSnapshot, Outcome, OutcomeKind};
use crate::disk::outbox::{LeaseKey, OutcomeWriter};
use crate::metrics::{CrawlResult, METRICS};

pub(super) struct LeaseCrawl {
    pub(super) crawl: LeasedCrawl,
    pub(super) crawler: Crawler,
    pub(super) writer: OutcomeWriter,
}

impl LeaseCrawl {
    /// Crawls until the crawl ends or `stop` is cancelled. Returns `None` if the lease has ended.
    /// After `closing` is cancelled, does not wait for an outcome that cannot be written.
    pub(super) async fn run(self, stop: CancellationToken, closing: CancellationToken) -> Option<WorkEvent> {
        let Self { crawl, crawler, writer } = self;
        let key = crawl.key;
        let at = |snapshot: Option<CrawlSnapshot>| snapshot.map(|snapshot| wire::checkpoint(key, snapshot));
        let end = crawler.crawl(crawl, stop).await;
        METRICS.crawl_ended(result_of(&end));
        Some(match end {
            CrawlEnd::Outcome(outcome) => match writer.keep(wire::outcome(key, outcome), &closing).await {
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

fn result_of(end: &CrawlEnd) -> CrawlResult {
    match end {
        CrawlEnd::Outcome(Outcome { kind, .. }) => match kind {
            OutcomeKind::Complete => CrawlResult::Complete,
            OutcomeKind::Truncated(_) => CrawlResult::Truncated,
            OutcomeKind::Blocked(_) => CrawlResult::Blocked,
            OutcomeKind::Unreachable => CrawlResult::Unreachable,
        },
        // Without a permit for the site's address the lease has ended.
        CrawlEnd::Stopped(_) | CrawlEnd::NotPermitted => CrawlResult::HandedBack,
        CrawlEnd::Paused(..) => CrawlResult::Paused,
        CrawlEnd::Crashed(_) => CrawlResult::Crashed,
        CrawlEnd::Broken(_) => CrawlResult::Broken,
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
