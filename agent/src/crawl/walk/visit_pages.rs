//! Visits the pages of a site in breadth-first order, and follows their redirects.
//!
//! A failed request is counted in the ledger, and the crawl continues. [`WalkEnd`] lists what ends
//! a crawl.

use super::queue_links::StepState;
use super::unread_page::UnreadPage;
use crate::crawl::budget::{Ledger, Policy};
use crate::crawl::fetch::Fetcher;
use crate::crawl::fetch::failure_cause::Trouble;
use crate::crawl::frontier::state_writer::{CrawlSnapshot, StateWriter};
use crate::crawl::frontier::{Frontier, QueueEntry};
use crate::crawl::html::site::Site;
use crate::crawl::html::site_path::SitePath;
use crate::crawl::outcome::{Blocker, WalkEnd};
use crate::crawl::politeness::robots::{RobotsCache, RobotsRules};
use crate::crawl::stopwatch::Stopwatch;

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
        let politeness_state = self.fetcher.politeness_state();
        self.step_state().note_totals(politeness_state);
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
