//! Derives a crawl's [`Outcome`] from how its walk ended. For example, a site that returned no page
//! before the time limit is unreachable.

use super::fetch::Fetcher;
use super::outcome::{CrawlEnd, Outcome, OutcomeKind};
use super::walk::WalkEnd;
use super::{Crawl, Trouble};

impl Crawl {
    pub(super) fn end(self, end: WalkEnd) -> CrawlEnd {
        let Self { ledger, origin, fetcher, job, frontier, started_at, watch, .. } = self;
        let first_error = ledger.first_error.map(|(_, sentence)| sentence).unwrap_or_default();
        let mut trouble = None;
        let (kind, message) = match end {
            WalkEnd::Blocked(blocker, reason) => (OutcomeKind::Blocked(blocker), reason),
            WalkEnd::Unreachable(why, reason) => {
                trouble = Some(why);
                (OutcomeKind::Unreachable, reason)
            }
            WalkEnd::Cut(_) if !ledger.answered => {
                trouble = Some(Trouble::TimedOut);
                (OutcomeKind::Unreachable, format!("{}: no answer within {:?}", job.name, job.policy.max_duration))
            }
            WalkEnd::Cut(budget) => (OutcomeKind::Truncated(budget), first_error),
            WalkEnd::Exhausted => (OutcomeKind::Complete, first_error),
            WalkEnd::Broken(reason) => return CrawlEnd::Broken(reason),
            WalkEnd::NotPermitted(reason) => {
                tracing::debug!(site = job.name, reason, "the crawl got no permit for its address");
                return CrawlEnd::NotPermitted;
            }
            WalkEnd::Paused(pause) => return CrawlEnd::Paused(None, pause),
        };
        CrawlEnd::Outcome(Outcome {
            kind,
            requests: fetcher.as_ref().map_or(0, Fetcher::requests),
            pages: ledger.pages,
            bytes: ledger.bytes,
            errors: ledger.errors,
            refetched: frontier.totals().refetched,
            trapped: frontier.totals().trapped,
            hosts: frontier.hosts().iter().cloned().collect(),
            started_at: started_at.checked_sub(watch.before).unwrap_or(started_at),
            duration: watch.elapsed(),
            rtt: fetcher.and_then(|fetcher| fetcher.median_round_trip()),
            origin: origin.map(|origin| origin.to_string()),
            message,
            trouble,
        })
    }
}
