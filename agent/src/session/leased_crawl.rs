//! Runs the crawl of one lease. The crawl ends with an outcome on the disk, or with a state from
//! which another agent can resume.

use std::time::SystemTime;

use landfall_proto::traces::{Attribute, Span, SpanKey, TraceSender};
use tokio_util::sync::CancellationToken;

use super::convert::leases;
use super::crawler::{Crawler, LeasedCrawl};
use super::event::WorkEvent;
use crate::crawl::{CrawlEnd, CrawlSnapshot, Outcome, OutcomeKind};
use crate::disk::lease_key::LeaseKey;
use crate::disk::outbox::OutcomeWriter;
use crate::machine::clock;
use crate::metrics::{CrawlResult, Label as _, METRICS};

pub(super) struct CrawlRunner {
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
        let at = |snapshot: Option<CrawlSnapshot>| snapshot.map(|snapshot| leases::checkpoint(key, snapshot));
        let end = crawler.crawl(crawl, stop).await;
        METRICS.crawl_ended(result_of(&end));
        if let Some(traces) = traces {
            traces.send(span(key, site, began, &end));
        }
        Some(match end {
            CrawlEnd::Outcome(outcome) => match writer.keep(leases::outcome(key, outcome), &closing).await {
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

pub(super) fn panic_message(payload: Box<dyn std::any::Any + Send>) -> String {
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast_ref::<&str>().map_or("a panic without a message", |text| text).to_owned(),
    }
}
