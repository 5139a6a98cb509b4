//! Crawls one site, politely: a lease goes in, an [`Outcome`] comes out.
//!
//! Breadth first from `/`, inside one origin. `crawl::walk` walks; `crawl::fetch` is the only one that sends,
//! `crawl::politeness` says when, `crawl::robots` what may be asked for, `crawl::frontier` what is next,
//! `crawl::budget` how much. Requests are sequential: a site never has two at once from this agent.
//!
//! A crawl that left something out for want of budget is truncated, never complete; one that brought not a single page
//! is neither.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

pub use budget::{Budget, Policy};

use crate::clock;
use crate::context::Context;
use crate::origin::Origin;
use crate::probe::ProbeError;
use crate::probe::settle::settle;
use budget::Ledger;
use fetch::{Fetcher, Timeouts};
use frontier::Frontier;
use politeness::Pacer;
use robots::Robots;
use site_path::Site;
use walk::{End, Walk};

mod budget;
mod fetch;
mod frontier;
mod links;
mod politeness;
mod robots;
mod site_path;
mod walk;

/// A site to be crawled.
#[derive(Debug, Clone)]
pub struct Job {
    /// The site as submitted.
    pub name: String,
    /// Where it answers, when that is known; otherwise it is settled first.
    pub origin: Option<Origin>,
    /// How far to go.
    pub policy: Policy,
}

/// How a crawl ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Everything within reach was fetched, though some of it may have answered with an error.
    Complete,
    /// A budget cut it.
    Truncated(Budget),
    /// robots.txt or the guard forbids the site.
    Blocked,
    /// The site gave not a single page.
    Unreachable,
}

/// What a finished crawl reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub kind: Kind,
    /// Pages received whole, with status 200.
    pub pages: u32,
    /// Body bytes of pages received, after decoding, cut pages included. Bodies of errors and redirects, and robots.txt,
    /// are not pages.
    pub bytes: u64,
    /// Requests that failed: no answer, a status of 400 and above, a body that broke off or was too large, redirects
    /// without end.
    pub errors: u32,
    /// When it began.
    pub started_at: SystemTime,
    /// How long it took.
    pub duration: Duration,
    /// The median time to first byte on warm connections; absent when there was none.
    pub rtt: Option<Duration>,
    /// The origin that was crawled; absent when none was found.
    pub origin: Option<String>,
    /// One sentence: why it was blocked or unreachable, else the first error; empty when all went well.
    pub message: String,
}

/// Crawls a site. `None` when it was stopped before it ended.
pub async fn run(job: Job, context: Arc<Context>, stop: CancellationToken) -> Option<Outcome> {
    run_within(Timeouts::default(), job, context, stop).await
}

async fn run_within(timeouts: Timeouts, job: Job, context: Arc<Context>, stop: CancellationToken) -> Option<Outcome> {
    let mut crawl = Crawl::new(job, timeouts);
    let (started_at, began) = (clock::wall(), crawl.began);
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => return None,
        ended = timeout_at(crawl.deadline, crawl.walk(&context)) => ended,
    };
    let end = ended.unwrap_or(End::Cut(Budget::Duration));
    Some(crawl.into_outcome(end, started_at, began.elapsed()))
}

/// A crawl under way. It owns what the outcome reports, so that a walk may be dropped at any moment.
struct Crawl {
    job: Job,
    timeouts: Timeouts,
    began: Instant,
    deadline: Instant,
    origin: Option<Origin>,
    fetcher: Option<Fetcher>,
    ledger: Ledger,
}

impl Crawl {
    fn new(job: Job, timeouts: Timeouts) -> Self {
        let began = Instant::now();
        // A deadline beyond what the clock can hold is as good as a year.
        let year = Duration::from_secs(365 * 86_400);
        let deadline = began + job.policy.max_duration.min(year);
        Self { job, timeouts, began, deadline, origin: None, fetcher: None, ledger: Ledger::default() }
    }

    async fn walk(&mut self, context: &Context) -> End {
        let mut pacer = Pacer::new(self.job.policy.request_interval);
        let site = match self.settle(context, &mut pacer).await {
            Ok(site) => site,
            Err(end) => return end,
        };
        self.ledger.answered = self.job.origin.is_none();
        let fetcher = match Fetcher::new(context, self.timeouts, pacer, self.deadline) {
            Ok(fetcher) => self.fetcher.insert(fetcher),
            Err(error) => return End::Unreachable(format!("{:#}", anyhow::Error::from(error))),
        };
        let rules = match robots::fetch(fetcher, &site).await {
            Robots::Rules(rules) => rules,
            Robots::Forbidden(reason) => return End::Blocked(reason),
            Robots::NoAnswer(reason) => return End::Unreachable(reason),
            Robots::OutOfTime => return End::Cut(Budget::Duration),
        };
        self.ledger.answered = true;
        self.origin = Some(site.origin().clone());
        if let Some(delay) = rules.crawl_delay() {
            fetcher.slow_down(delay);
        }
        let policy = self.job.policy;
        let frontier = Frontier::new(policy.max_depth, policy.max_pages);
        Walk { site, rules, frontier, fetcher, ledger: &mut self.ledger, policy }.run().await
    }

    /// Finds where the site answers, when that is not known yet.
    async fn settle(&self, context: &Context, pacer: &mut Pacer) -> Result<Site, End> {
        let origin = match &self.job.origin {
            Some(origin) => origin.clone(),
            None => {
                let interval = self.job.policy.request_interval;
                let settled = settle(context, &self.job.name, interval, self.timeouts.first_byte).await;
                pacer.start(Instant::now());
                settled.map_err(unsettled)?.origin
            }
        };
        Site::new(&origin).ok_or_else(|| End::Unreachable(format!("{origin} is not a URL's origin")))
    }

    fn into_outcome(self, end: End, started_at: SystemTime, duration: Duration) -> Outcome {
        let Self { ledger, origin, fetcher, job, .. } = self;
        let first_error = ledger.first_error.unwrap_or_default();
        let (kind, message) = match end {
            End::Blocked(reason) => (Kind::Blocked, reason),
            End::Unreachable(reason) => (Kind::Unreachable, reason),
            End::Cut(_) if !ledger.answered => {
                (Kind::Unreachable, format!("{}: no answer within {:?}", job.name, job.policy.max_duration))
            }
            End::Cut(budget) => (Kind::Truncated(budget), first_error),
            End::Exhausted => (Kind::Complete, first_error),
        };
        Outcome {
            kind,
            pages: ledger.pages,
            bytes: ledger.bytes,
            errors: ledger.errors,
            started_at,
            duration,
            rtt: fetcher.and_then(|fetcher| fetcher.median_round_trip()),
            origin: origin.map(|origin| origin.to_string()),
            message,
        }
    }
}

fn unsettled(error: ProbeError) -> End {
    match error {
        ProbeError::Guard(refused) => End::Blocked(refused.to_string()),
        other => End::Unreachable(other.to_string()),
    }
}

#[cfg(test)]
mod tests;
