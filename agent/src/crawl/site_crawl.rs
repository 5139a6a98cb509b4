//! Runs the crawl of a site for one lease: finds the origin, waits for the permit to send requests
//! to its address, reads robots.txt, visits the pages, and ends or pauses the crawl.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::fetch::failure_cause::Trouble;
use super::fetch::site_address::{AddressPermits, SiteAddress};
use super::fetch::{Fetcher, Timeouts};
use super::frontier::Frontier;
use super::frontier::crawl_storage::{CrawlSnapshot, CrawlStorage, StateWriter};
use super::html::site_urls::Site;
use super::outcome::{
    Blocker, CrawlEnd, WalkEnd, checkpoint_in_time, is_long_enough_to_hand_back, rest, rest_after_last_request,
};
use super::policy_and_budget::{Budget, Job, Ledger, Policy, Stopwatch};
use super::politeness::robots_fetch::RulesError;
use super::politeness::robots_rules::{RobotsCache, rules_of};
use super::politeness::{Politeness, RateState};
use super::walk::Walk;
use crate::machine::clock;
use crate::net::origin::Origin;
use crate::net::request_context::RequestContext;
use crate::probe::measure_host::settle;
use crate::warc::Recorder;

/// Crawls a site, or resumes a stopped crawl of it. All crawls of an agent share `robots`.
pub async fn run(
    job: Job,
    storage: CrawlStorage,
    permits: AddressPermits,
    context: Arc<RequestContext>,
    robots: Arc<RobotsCache>,
    stop: CancellationToken,
) -> CrawlEnd {
    run_within(Timeouts::default(), job, storage, permits, context, robots, stop).await
}

pub(super) async fn run_within(
    timeouts: Timeouts,
    job: Job,
    storage: CrawlStorage,
    permits: AddressPermits,
    context: Arc<RequestContext>,
    robots: Arc<RobotsCache>,
    stop: CancellationToken,
) -> CrawlEnd {
    let Policy { max_depth, max_pages, .. } = job.policy;
    let (recorder, preempted) = (storage.recorder.clone(), storage.preempted.clone());
    let (frontier, mut state_writer) = match storage.open(&job.name, max_depth, max_pages).await {
        Ok(opened) => opened,
        Err(error) => return CrawlEnd::Broken(format!("the crawl's file: {error}")),
    };
    let mut crawl = Crawl::new(job, timeouts, frontier, permits, robots, recorder.clone());
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => None,
        () = preempted.cancelled() => None,
        ended = timeout_at(crawl.deadline, crawl.walk(&context, &mut state_writer)) => Some(ended),
    };
    let rested_at = crawl.rested_at();
    let outcome = match ended {
        None => {
            let snapshot = crawl.snapshot().await;
            if preempted.is_cancelled() {
                rest(rested_at, &stop).await;
            }
            return CrawlEnd::Stopped(snapshot);
        }
        Some(Ok(WalkEnd::Paused(pause))) => {
            // A crawl that is resumed during the pause also stops here, but without a fetcher, and
            // must not count the pause a second time.
            if crawl.fetcher.is_some() {
                crawl.watch.count_pause(pause);
                crawl.note_time().await;
            }
            let snapshot = crawl.snapshot().await;
            rest(rested_at, &stop).await;
            return CrawlEnd::Paused(snapshot, pause);
        }
        Some(ended) => ended.unwrap_or(WalkEnd::Cut(Budget::Duration)),
    };
    if let Some(recorder) = recorder {
        // The pages must be stored before anyone can read the outcome.
        tokio::select! {
            biased;
            stored = recorder.synced() => if let Err(error) = stored {
                return CrawlEnd::Broken(error.to_string());
            },
            () = stop.cancelled() => return CrawlEnd::Stopped(None),
        }
    }
    let ended = crawl.end(outcome);
    rest(rested_at, &stop).await;
    ended
}

/// A running crawl. The crawl owns all data that the outcome reports, so no data are lost if the
/// future of `walk` is dropped at an await.
struct Crawl {
    job: Job,
    timeouts: Timeouts,
    watch: Stopwatch,
    deadline: Instant,
    origin: Option<Origin>,
    /// The time at which the search for the site's origin ended, with or without a result. While
    /// there is no fetcher, `settled_at` counts as the time of the last request.
    settled_at: Option<Instant>,
    fetcher: Option<Fetcher>,
    frontier: Frontier,
    ledger: Ledger,
    permits: AddressPermits,
    robots: Arc<RobotsCache>,
    recorder: Option<Recorder>,
}

impl Crawl {
    fn new(
        job: Job,
        timeouts: Timeouts,
        frontier: Frontier,
        permits: AddressPermits,
        robots: Arc<RobotsCache>,
        recorder: Option<Recorder>,
    ) -> Self {
        let watch = Stopwatch::after(Duration::from_millis(frontier.totals().millis));
        let deadline = watch.deadline(job.policy.max_duration);
        let ledger = Ledger::after(frontier.totals());
        let (origin, settled_at, fetcher) = (None, None, None);
        Self {
            job,
            timeouts,
            watch,
            deadline,
            origin,
            settled_at,
            fetcher,
            frontier,
            ledger,
            permits,
            robots,
            recorder,
        }
    }

    async fn walk(&mut self, context: &RequestContext, state_writer: &mut StateWriter) -> WalkEnd {
        let mut politeness = self.politeness();
        let rate_state = self.recorded_rate_state();
        politeness.restore(rate_state, Instant::now());
        let hands_back = self.permits.come_from_scheduler();
        if hands_back && is_long_enough_to_hand_back(rate_state.pause) {
            return WalkEnd::Paused(rate_state.pause);
        }
        let site_address = Arc::new(SiteAddress::new(context, self.permits.clone(), self.timeouts.connect));
        let site = match self.settle(context, &site_address, &mut politeness).await {
            Ok(site) => site,
            Err(end) => return end,
        };
        self.ledger.answered |= self.job.origin.is_none();
        let fetcher = match Fetcher::new(context, self.timeouts, politeness, self.deadline, site_address) {
            Ok(fetcher) => self.fetcher.insert(fetcher),
            Err(error) => return WalkEnd::Unreachable(Trouble::Other, format!("{:#}", anyhow::Error::from(error))),
        };
        if let Some(recorder) = self.recorder.clone() {
            fetcher.record(recorder, context);
        }
        let rules = match rules_of(fetcher, &site, &self.robots).await {
            Ok(rules) => rules,
            Err(RulesError::Forbidden(reason)) => {
                return WalkEnd::Blocked(Blocker::of_robots(fetcher.is_circuit_open()), reason);
            }
            Err(RulesError::NoAnswer(trouble, reason)) => return WalkEnd::Unreachable(trouble, reason),
            Err(RulesError::OutOfTime) => return WalkEnd::Cut(Budget::Duration),
        };
        self.ledger.answered = true;
        self.origin = Some(site.origin().clone());
        if let Some(delay) = rules.crawl_delay() {
            fetcher.politeness().slow_down(delay);
        }
        let (frontier, ledger, policy) = (&mut self.frontier, &mut self.ledger, self.job.policy.clone());
        let deadline = hands_back.then_some(self.deadline);
        Walk {
            site,
            rules,
            robots: &self.robots,
            frontier,
            state_writer,
            fetcher,
            ledger,
            policy,
            watch: self.watch,
            hands_back_before: deadline,
            unread: None,
            reads_long: false,
        }
        .run()
        .await
    }

    /// The state from which another agent can resume; `None` if the crawl has not begun, or its
    /// pages cannot be stored in time.
    async fn snapshot(&mut self) -> Option<CrawlSnapshot> {
        if self.frontier.is_new() {
            return None;
        }
        let checkpoint = checkpoint_in_time(&mut self.frontier).await?;
        let rate_state = self.fetcher.as_ref().map(Fetcher::rate_state).unwrap_or_default();
        Some(CrawlSnapshot { checkpoint, rate_state, last_error: self.ledger.last_error.clone().unwrap_or_default() })
    }

    /// The time until which the crawl waits before it returns its lease, so that the site's next
    /// crawl may send a request at once. `None` if the crawl has sent no request, or has no
    /// scheduler.
    fn rested_at(&self) -> Option<Instant> {
        let last = self.fetcher.as_ref().map_or(self.settled_at, Fetcher::last_start);
        let rest = rest_after_last_request(self.job.policy.request_interval);
        last.filter(|_| self.permits.come_from_scheduler()).map(|last| last + rest)
    }

    fn politeness(&self) -> Politeness {
        let Policy { request_interval, shortest_interval, .. } = self.job.policy;
        let mut politeness = Politeness::new(request_interval).down_to(shortest_interval);
        politeness.learn_size(self.frontier.totals().listed.max(self.job.last_pages.unwrap_or_default().into()));
        politeness
    }

    /// The rate state that the crawl recorded before it was stopped.
    fn recorded_rate_state(&self) -> RateState {
        let totals = self.frontier.totals();
        let now = clock::wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let pause = Duration::from_millis(totals.paused_until_unix_ms).saturating_sub(now);
        let (turned_away, failed_in_a_row) = (totals.turned_away, totals.failed_in_a_row);
        RateState { turned_away, failed_in_a_row, pause, ..RateState::default() }
    }

    fn end(self, end: WalkEnd) -> CrawlEnd {
        let Self { job, ledger, frontier, fetcher, origin, watch, .. } = self;
        CrawlEnd::of_walk(end, &job, ledger, Some(&frontier), fetcher.as_ref(), origin.as_ref(), watch)
    }

    async fn note_time(&mut self) {
        self.frontier.totals_mut().millis = u64::try_from(self.watch.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Err(error) = self.frontier.note_totals().await {
            tracing::warn!(%error, "cannot write a pause to the disk; it would not count after a restart");
        }
    }

    /// Finds the site's origin. The next request waits for the request interval after this search.
    async fn settle(
        &mut self,
        context: &RequestContext,
        site_address: &SiteAddress,
        politeness: &mut Politeness,
    ) -> Result<Site, WalkEnd> {
        let (limit, settled_at) = (self.timeouts.first_byte, &mut self.settled_at);
        let origin = find_origin(&self.job, context, site_address, limit, settled_at).await;
        if let Some(now) = self.settled_at {
            politeness.start(now);
        }
        let origin = origin?;
        Site::new(&origin)
            .ok_or_else(|| WalkEnd::Unreachable(Trouble::Other, format!("{origin} is not a URL's origin")))
    }
}

/// Waits for the permit for the site's address; then finds the site's origin if it is unknown.
/// `limit` is the time limit for each request. Sets `settled_at` if the search sent requests.
pub(super) async fn find_origin(
    job: &Job,
    context: &RequestContext,
    site_address: &SiteAddress,
    limit: Duration,
    settled_at: &mut Option<Instant>,
) -> Result<Origin, WalkEnd> {
    if let Some(origin) = &job.origin {
        site_address.of(&origin.host).await?;
        return Ok(origin.clone());
    }
    let named = Origin::candidates(&job.name);
    let named = named.map_err(|error| WalkEnd::Unreachable(Trouble::Other, error.to_string()))?;
    if let Some(first) = named.first() {
        site_address.of(&first.host).await?;
    }
    let settled = settle(context, &job.name, job.policy.request_interval, limit).await;
    *settled_at = Some(Instant::now());
    let origin = settled?;
    site_address.of(&origin.host).await?;
    Ok(origin)
}
