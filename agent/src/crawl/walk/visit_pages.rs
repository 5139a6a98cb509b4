//! Visits the pages of a site in breadth-first order, follows redirects inside the site, queues the
//! links of pages, fetches robots.txt again when its rules have expired, and decides how a crawl
//! ends.
//!
//! A failed request is counted in the ledger, and the crawl continues. [`WalkEnd`] lists what ends
//! a crawl.

use std::time::{Duration, Instant};

use crate::crawl::fetch::Fetcher;
use crate::crawl::fetch::failure_cause::Trouble;
use crate::crawl::frontier::crawl_storage::{CrawlSnapshot, StateWriter};
use crate::crawl::frontier::{Frontier, QueueEntry};
use crate::crawl::html::links::{LinkExtractor, Links};
use crate::crawl::html::site_urls::{Fingerprint, Site, SitePath};
use crate::crawl::outcome::{Blocker, WalkEnd, is_worth_handing_back};
use crate::crawl::policy_and_budget::{Budget, Ledger, Policy, Stopwatch, unix_ms};
use crate::crawl::politeness::RateState;
use crate::crawl::politeness::robots_fetch::RulesError;
use crate::crawl::politeness::robots_rules::{RobotsCache, RobotsRules, rules_of};
use crate::machine::clock;

/// Crawls a site whose robots.txt has been read.
pub(in crate::crawl) struct Walk<'a> {
    pub(in crate::crawl) site: Site,
    pub(in crate::crawl) rules: RobotsRules,
    pub(in crate::crawl) frontier: &'a mut Frontier,
    pub(in crate::crawl) robots: &'a RobotsCache,
    pub(in crate::crawl) state_writer: &'a mut StateWriter,
    pub(in crate::crawl) fetcher: &'a mut Fetcher,
    pub(in crate::crawl) ledger: &'a mut Ledger,
    pub(in crate::crawl) policy: Policy,
    pub(in crate::crawl) watch: Stopwatch,
    /// The crawl is returned to the scheduler for a long pause that the site requires, unless the
    /// pause would end after this time. `None` if there is no scheduler.
    pub(in crate::crawl) hands_back_before: Option<tokio::time::Instant>,
    /// The newest page, if its links have not been extracted yet. Extracting the links ends the
    /// visit to the page.
    pub(in crate::crawl) unread: Option<UnreadPage>,
    /// Whether the newest page took a long time to read.
    pub(in crate::crawl) reads_long: bool,
}

impl Walk<'_> {
    pub(in crate::crawl) async fn run(mut self) -> WalkEnd {
        let root = SitePath::root();
        if !self.rules.allow(&root) {
            return WalkEnd::Blocked(Blocker::Robots, format!("robots.txt forbids {}", self.site.root()));
        }
        match self.visit_all(root).await {
            Ok(()) => self.end_of_frontier(),
            Err(end) => end,
        }
    }

    async fn visit_all(&mut self, root: SitePath) -> Result<(), WalkEnd> {
        if self.frontier.is_new() {
            self.frontier.offer(&root, 0);
            self.end_step();
        }
        if self.policy.sitemaps && !self.frontier.totals().sitemaps_read {
            self.read_sitemaps().await?;
            self.frontier.totals_mut().sitemaps_read = true;
            self.end_step();
        }
        while let Some(entry) = self.next().await? {
            // If the crawl may end or pause now, read the newest page first, so that the visit to
            // this page is recorded.
            if self.reads_long || self.may_end() {
                self.catch_up().await;
            }
            if let Some(budget) = self.ledger.exhausted(&self.policy) {
                return Err(WalkEnd::Cut(budget));
            }
            self.check_pause()?;
            self.renew_rules().await?;
            // Check the path again, because the rules may have changed since the path was queued,
            // perhaps by another agent.
            if self.rules.allow(&entry.path) {
                self.visit(entry).await?;
            } else {
                self.catch_up().await;
            }
            if self.unread.is_none() {
                self.end_visit().await;
            }
            self.report_snapshot().await?;
        }
        Ok(())
    }

    fn may_end(&self) -> bool {
        self.ledger.exhausted(&self.policy).is_some() || self.fetcher.is_paused() || self.rules.are_stale()
    }

    /// The next path to fetch. If the queue is empty, first reads the newest page, which may
    /// contain links.
    async fn next(&mut self) -> Result<Option<QueueEntry>, WalkEnd> {
        if let Some(entry) = self.frontier.next().await? {
            return Ok(Some(entry));
        }
        self.catch_up().await;
        Ok(self.frontier.next().await?)
    }

    /// Ends a record in the frontier's log that is not a page visit, such as a sitemap's record.
    pub(super) fn end_step(&mut self) {
        self.note_totals();
        self.frontier.end_step();
    }

    pub(super) fn step_state(&mut self) -> StepState<'_> {
        let Self { rules, policy, frontier, state_writer, ledger, watch, .. } = self;
        StepState { rules, policy, frontier, state_writer, ledger, watch: *watch }
    }

    pub(super) fn note_totals(&mut self) {
        let rate_state = self.fetcher.rate_state();
        self.step_state().note_totals(rate_state);
    }

    /// Fetches a path and follows its redirects inside the site.
    async fn visit(&mut self, entry: QueueEntry) -> Result<(), WalkEnd> {
        let QueueEntry { mut path, depth } = entry;
        let mut hops = vec![path.fingerprint()];
        loop {
            let Some(answer) = self.request(&path, depth).await? else { return Ok(()) };
            let target = answer.location().and_then(|location| self.url(&path)?.join(location).ok());
            let redirects = answer.status().is_redirection();
            if !redirects {
                return self.take(answer, &path, depth).await;
            }
            self.discard(answer).await?;
            let Some(target) = target else {
                self.fail(&path, Trouble::Redirect, "redirects without a valid target");
                return Ok(());
            };
            match self.follow(&path, &target, depth, &mut hops)? {
                Some(next) => path = next,
                None => return Ok(()),
            }
        }
    }

    pub(super) async fn report_snapshot(&mut self) -> Result<(), WalkEnd> {
        if self.state_writer.is_due(self.fetcher.is_paused()) {
            let (rate_state, last_error) =
                (self.fetcher.rate_state(), self.ledger.last_error.clone().unwrap_or_default());
            let checkpoint = self.frontier.checkpoint().await?;
            self.state_writer.report(CrawlSnapshot { checkpoint, rate_state, last_error });
        }
        Ok(())
    }

    pub(super) fn url(&self, path: &SitePath) -> Option<reqwest::Url> {
        self.site.url(path)
    }

    pub(super) fn fail(&mut self, path: &SitePath, trouble: Trouble, reason: &str) {
        let origin = self.site.origin();
        self.ledger.fail(trouble, || format!("{origin}{}: {reason}", path.as_str()));
    }
}

pub(in crate::crawl) const MAX_REDIRECTS: usize = 5;

impl Walk<'_> {
    /// The target of a redirect; `None` if the target need not be fetched.
    fn follow(
        &mut self,
        from: &SitePath,
        target: &reqwest::Url,
        depth: u32,
        hops: &mut Vec<Fingerprint>,
    ) -> Result<Option<SitePath>, WalkEnd> {
        let Some(next) = self.site.path(target) else {
            if let Some(other) = self.site.other_site(target) {
                self.frontier.discover(other, self.policy.max_hosts);
            }
            // Other sites are crawled separately. But if the start page redirects to another site,
            // this crawl has nothing to fetch.
            let left = format!("{} redirects to {target}, outside the site", self.site.root());
            return if depth == 0 { Err(WalkEnd::Unreachable(Trouble::Redirect, left)) } else { Ok(None) };
        };
        if hops.contains(&next.fingerprint()) {
            self.fail(from, Trouble::Redirect, "redirects in a loop");
            return Ok(None);
        }
        if hops.len() > MAX_REDIRECTS {
            self.fail(from, Trouble::Redirect, "redirects too often");
            return Ok(None);
        }
        if !self.rules.allow(&next) {
            let forbidden = format!("robots.txt forbids {target}, to which the start page redirects");
            return if depth == 0 { Err(WalkEnd::Blocked(Blocker::Robots, forbidden)) } else { Ok(None) };
        }
        // The policy's path filter does not apply to the target of the start page's redirect.
        if depth > 0 && !self.policy.paths.allow(&next) {
            return Ok(None);
        }
        if !self.frontier.mark_known(&next) {
            return Ok(None);
        }
        hops.push(next.fingerprint());
        Ok(Some(next))
    }
}

/// Maximum time to process links before the crawl yields to other tokio tasks. robots.txt may have
/// thousands of rules, and each link is matched against all of them.
const TURN: Duration = Duration::from_millis(5);

/// The state that reading a page or a sitemap updates. The fetcher is not included, because it may
/// be sending a request at the same time.
pub(super) struct StepState<'a> {
    pub(super) rules: &'a RobotsRules,
    pub(super) policy: &'a Policy,
    pub(super) frontier: &'a mut Frontier,
    pub(super) state_writer: &'a mut StateWriter,
    pub(super) ledger: &'a Ledger,
    pub(super) watch: Stopwatch,
}

impl StepState<'_> {
    /// Updates the frontier's totals from the ledger and the rate state.
    pub(super) fn note_totals(&mut self, rate_state: RateState) {
        let totals = self.frontier.totals_mut();
        self.ledger.write_to(totals);
        totals.millis = u64::try_from(self.watch.elapsed().as_millis()).unwrap_or(u64::MAX);
        let RateState { turned_away, failed_in_a_row, pause, .. } = rate_state;
        (totals.turned_away, totals.failed_in_a_row) = (turned_away, failed_in_a_row);
        totals.paused_until_unix_ms = if pause.is_zero() { 0 } else { unix_ms(clock::wall() + pause) };
        self.state_writer.show(self.frontier.totals(), self.frontier.waiting());
    }

    /// Queues the paths that robots.txt and the policy allow. Forbidden paths do not make the crawl
    /// incomplete.
    pub(super) async fn offer_all(&mut self, paths: Vec<SitePath>, depth: u32) {
        let mut turn = Instant::now();
        for path in paths {
            if self.frontier.is_unseen(&path) && self.policy.paths.allow(&path) && self.rules.allow(&path) {
                self.frontier.offer(&path, depth);
            }
            if turn.elapsed() >= TURN {
                tokio::task::yield_now().await;
                turn = Instant::now();
            }
        }
    }

    /// Queues the links of a page.
    pub(super) async fn read(&mut self, page: UnreadPage) {
        let depth = page.depth;
        let links = page.finish();
        if links.cut {
            self.frontier.totals_mut().dropped = true;
        }
        links.hosts.into_iter().for_each(|host| self.frontier.discover(host, self.policy.max_hosts));
        self.offer_all(links.paths, depth).await;
    }

    /// Ends the visit to a path: records it, and writes the frontier if that is due.
    pub(super) async fn end_visit(&mut self, rate_state: RateState) {
        self.note_totals(rate_state);
        self.frontier.visited();
        self.state_writer.step(self.frontier).await;
    }
}

/// Maximum size in bytes of a page that is kept to be read later. Larger pages, which are few, are
/// read as they arrive. Fifty crawls keep 3 MiB, or 6 MiB including the unused capacity of growing
/// buffers.
const MOST_UNREAD: usize = 64 << 10;

/// A page that is being received, or that has been received but not read yet.
pub(in crate::crawl) struct UnreadPage {
    links: LinkExtractor,
    /// Received bytes that have not been read yet. The bytes are copied, because even a slice of
    /// one byte would keep a whole buffer of the HTTP library allocated.
    held: Vec<u8>,
    received: usize,
    /// The depth of the page's links.
    pub(super) depth: u32,
}

impl UnreadPage {
    pub(super) const fn new(links: LinkExtractor, depth: u32) -> Self {
        Self { links, held: Vec::new(), received: 0, depth }
    }

    pub(super) fn add(&mut self, piece: &[u8]) {
        self.received = self.received.saturating_add(piece.len());
        if self.received <= MOST_UNREAD {
            self.held.extend_from_slice(piece);
            return;
        }
        self.read();
        self.links.write(piece);
    }

    /// Reads the rest of the page, and returns the links of the whole page.
    pub(super) fn finish(mut self) -> Links {
        self.read();
        self.links.finish()
    }

    fn read(&mut self) {
        self.links.write(&std::mem::take(&mut self.held));
    }
}

impl Walk<'_> {
    /// Fetches robots.txt again if the rules have expired.
    async fn renew_rules(&mut self) -> Result<(), WalkEnd> {
        if !self.rules.are_stale() {
            return Ok(());
        }
        // Drop the old rules first, so that their memory is free when the new rules need memory.
        self.rules = RobotsRules::none();
        self.rules = match rules_of(self.fetcher, &self.site, self.robots).await {
            Ok(rules) => rules,
            Err(RulesError::Forbidden(reason) | RulesError::NoAnswer(_, reason)) => {
                return Err(WalkEnd::Blocked(Blocker::of_robots(self.fetcher.is_circuit_open()), reason));
            }
            Err(RulesError::OutOfTime) => return Err(WalkEnd::Cut(Budget::Duration)),
        };
        if let Some(delay) = self.rules.crawl_delay() {
            self.fetcher.politeness().slow_down(delay);
        }
        Ok(())
    }
}

impl Walk<'_> {
    fn end_of_frontier(&self) -> WalkEnd {
        if self.ledger.page_cut {
            WalkEnd::Cut(Budget::Bytes)
        } else if self.frontier.totals().dropped {
            WalkEnd::Cut(Budget::Pages)
        } else if self.frontier.has_beyond() {
            WalkEnd::Cut(Budget::Depth)
        } else if self.ledger.pages == 0 {
            let nothing = || (Trouble::Other, format!("{} returned no page", self.site.root()));
            let (trouble, reason) = self.ledger.first_error.clone().unwrap_or_else(nothing);
            WalkEnd::Unreachable(trouble, reason)
        } else {
            WalkEnd::Exhausted
        }
    }

    /// How a crawl ends at its deadline. If the crawl has fetched no page and met at least one
    /// error, the site is unreachable.
    pub(super) fn out_of_time(&self) -> WalkEnd {
        match &self.ledger.first_error {
            Some((trouble, error)) if self.ledger.pages == 0 => WalkEnd::Unreachable(*trouble, error.clone()),
            _ => WalkEnd::Cut(Budget::Duration),
        }
    }

    /// Returns `WalkEnd::Paused` if the site requires a long pause.
    pub(super) fn check_pause(&self) -> Result<(), WalkEnd> {
        let pause = self.fetcher.rate_state().pause;
        match self.hands_back_before {
            Some(deadline) if is_worth_handing_back(pause, deadline) => Err(WalkEnd::Paused(pause)),
            _ => Ok(()),
        }
    }
}
