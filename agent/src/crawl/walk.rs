//! Visits the pages of a site in breadth-first order: sends requests, follows redirects, receives
//! pages and queues their links.
//!
//! A failed request is counted in the ledger, and the crawl continues. [`WalkEnd`] lists what ends
//! a crawl.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::budget::{Budget, Ledger, MAX_PAGE_BYTES, Policy};
use super::fetch::failure_cause::{FetchError, Trouble};
use super::fetch::{CrawlResponse, Fetcher};
use super::frontier::state_writer::{CrawlSnapshot, StateWriter};
use super::frontier::{Frontier, QueueEntry};
use super::html::links::LinkExtractor;
use super::html::site::Site;
use super::html::site_path::SitePath;
use super::lease_return::is_worth_handing_back;
use super::outcome::{Blocker, WalkEnd};
use super::politeness::refusal::ATTEMPTS;
use super::politeness::robots::page_directives::header_forbids_following;
use super::politeness::robots::{self, RobotsCache, RobotsRules, RulesError};
use super::stopwatch::Stopwatch;

mod fetch_sitemaps;
mod queue_links;
mod read_while_waiting;
pub(super) mod redirects;
mod unread_page;

use queue_links::StepState;
use unread_page::UnreadPage;

enum Body {
    Whole,
    TooLarge,
    Broken(FetchError),
}

/// Crawls a site whose robots.txt has been read.
pub(super) struct Walk<'a> {
    pub(super) site: Site,
    pub(super) rules: RobotsRules,
    pub(super) frontier: &'a mut Frontier,
    pub(super) robots: &'a RobotsCache,
    pub(super) state_writer: &'a mut StateWriter,
    pub(super) fetcher: &'a mut Fetcher,
    pub(super) ledger: &'a mut Ledger,
    pub(super) policy: Policy,
    pub(super) watch: Stopwatch,
    /// The crawl is returned to the scheduler for a long pause that the site requires, unless the
    /// pause would end after this time. `None` if there is no scheduler.
    pub(super) hands_back_before: Option<tokio::time::Instant>,
    /// The newest page, if its links have not been extracted yet. Extracting the links ends the
    /// visit to the page.
    pub(super) unread: Option<UnreadPage>,
    /// Whether the newest page took a long time to read.
    pub(super) reads_long: bool,
}

impl Walk<'_> {
    pub(super) async fn run(mut self) -> WalkEnd {
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

    /// Returns `WalkEnd::Paused` if the site requires a long pause.
    fn check_pause(&self) -> Result<(), WalkEnd> {
        let pause = self.fetcher.politeness_state().pause;
        match self.hands_back_before {
            Some(deadline) if is_worth_handing_back(pause, deadline) => Err(WalkEnd::Paused(pause)),
            _ => Ok(()),
        }
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

    /// Fetches robots.txt again if the rules have expired.
    async fn renew_rules(&mut self) -> Result<(), WalkEnd> {
        if !self.rules.are_stale() {
            return Ok(());
        }
        // Drop the old rules first, so that their memory is free when the new rules need memory.
        self.rules = RobotsRules::none();
        self.rules = match robots::rules_of(self.fetcher, &self.site, self.robots).await {
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

    /// Ends a record in the frontier's log that is not a page visit, such as a sitemap's record.
    fn end_step(&mut self) {
        self.note_totals();
        self.frontier.end_step();
    }

    fn step_state(&mut self) -> StepState<'_> {
        let Self { rules, policy, frontier, state_writer, ledger, watch, .. } = self;
        StepState { rules, policy, frontier, state_writer, ledger, watch: *watch }
    }

    fn note_totals(&mut self) {
        let politeness_state = self.fetcher.politeness_state();
        self.step_state().note_totals(politeness_state);
    }

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

    /// Sends a request. While the site responds with 429 or 503, repeats the request up to
    /// [`ATTEMPTS`] times in total, so that pages of a busy site are not missed. `None`
    /// if the request failed.
    async fn request(&mut self, path: &SitePath, depth: u32) -> Result<Option<CrawlResponse>, WalkEnd> {
        let Some(url) = self.url(path) else {
            self.catch_up().await;
            self.fail(path, Trouble::Other, "is not a URL");
            return Ok(None);
        };
        let mut turned_away = None;
        for attempt in 1.. {
            match self.get(&url).await.map(|answer| answer.found_at(depth)) {
                Ok(answer) if answer.turns_away() && attempt < ATTEMPTS && !self.fetcher.is_circuit_open() => {
                    turned_away = Some(answer.status());
                    self.discard(answer).await?;
                    // Store the state now, because the pause may be long, and a restart must not
                    // shorten it.
                    self.note_totals();
                    self.frontier.note_totals().await?;
                    self.check_pause()?;
                    self.report_snapshot().await?;
                }
                Ok(answer) => return Ok(Some(answer)),
                Err(FetchError::OutOfTime) => {
                    if let Some(status) = turned_away {
                        let reason = format!("answered {}, and no time is left for another request", status.as_u16());
                        self.fail(path, Trouble::of_status(status), &reason);
                    }
                    return Err(self.out_of_time());
                }
                Err(error @ FetchError::CircuitOpen) => {
                    return Err(WalkEnd::Blocked(Blocker::Breaker, format!("{}: {error}", self.site.root())));
                }
                Err(FetchError::NotPermitted(reason)) => return Err(WalkEnd::NotPermitted(reason)),
                Err(FetchError::Refused(refused)) if depth == 0 => {
                    return Err(WalkEnd::Blocked(Blocker::Guard, refused.to_string()));
                }
                Err(error) => {
                    self.fail(path, Trouble::from(&error), &error.to_string());
                    break;
                }
            }
        }
        Ok(None)
    }

    async fn report_snapshot(&mut self) -> Result<(), WalkEnd> {
        if self.state_writer.is_due(self.fetcher.is_paused()) {
            let (rate_state, last_error) =
                (self.fetcher.rate_state(), self.ledger.last_error.clone().unwrap_or_default());
            let checkpoint = self.frontier.checkpoint().await?;
            self.state_writer.report(CrawlSnapshot { checkpoint, rate_state, last_error });
        }
        Ok(())
    }

    /// How a crawl ends at its deadline. If the crawl has fetched no page and met at least one
    /// error, the site is unreachable.
    fn out_of_time(&self) -> WalkEnd {
        match &self.ledger.first_error {
            Some((trouble, error)) if self.ledger.pages == 0 => WalkEnd::Unreachable(*trouble, error.clone()),
            _ => WalkEnd::Cut(Budget::Duration),
        }
    }

    /// Receives a response that is not a redirect, and queues its links.
    async fn take(&mut self, answer: CrawlResponse, path: &SitePath, depth: u32) -> Result<(), WalkEnd> {
        let status = answer.status();
        if status.is_client_error() || status.is_server_error() {
            self.fail(path, Trouble::of_status(status), &format!("answered {}", status.as_u16()));
        }
        if status.as_u16() != 200 {
            return self.discard(answer).await;
        }
        let mut page = None;
        if answer.is_html()
            && !header_forbids_following(answer.robots_tags(), self.fetcher.token())
            && let Some(url) = self.url(path)
        {
            let links = LinkExtractor::new(self.site.clone(), url, answer.charset(), Arc::clone(self.fetcher.token()));
            page = Some(UnreadPage::new(links, depth.saturating_add(1)));
        }
        match self.receive(answer, page.as_mut()).await? {
            Body::Whole => self.ledger.complete_page(),
            Body::Broken(error) => {
                self.fetcher.broke_off(&error);
                self.fail(path, Trouble::from(&error), &error.to_string());
            }
            Body::TooLarge => {
                self.ledger.page_cut = true;
                self.fail(path, Trouble::Other, &format!("is larger than {} MiB", MAX_PAGE_BYTES >> 20));
            }
        }
        self.unread = page;
        Ok(())
    }

    async fn receive(&mut self, mut answer: CrawlResponse, mut page: Option<&mut UnreadPage>) -> Result<Body, WalkEnd> {
        let end = self.ledger.bytes.saturating_add(MAX_PAGE_BYTES);
        loop {
            let piece = match answer.piece().await {
                Ok(Some(piece)) => piece,
                Ok(None) => return Ok(Body::Whole),
                Err(error) => return Ok(Body::Broken(error)),
            };
            self.ledger.receive(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            if self.ledger.overdrawn(&self.policy) {
                return Err(WalkEnd::Cut(Budget::Bytes));
            }
            if let Some(page) = page.as_mut() {
                page.add(&piece);
            }
            if self.ledger.bytes > end {
                return Ok(Body::TooLarge);
            }
        }
    }

    /// Reads an unwanted body if reading it costs less than a new connection.
    async fn discard(&mut self, answer: CrawlResponse) -> Result<(), WalkEnd> {
        let (ledger, policy) = (&mut self.ledger, &self.policy);
        let spend = |bytes| {
            ledger.receive_unwanted(bytes);
            if ledger.overdrawn(policy) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        answer.discard(spend).await;
        if self.ledger.overdrawn(&self.policy) { Err(WalkEnd::Cut(Budget::Bytes)) } else { Ok(()) }
    }

    fn url(&self, path: &SitePath) -> Option<reqwest::Url> {
        self.site.url(path)
    }

    fn fail(&mut self, path: &SitePath, trouble: Trouble, reason: &str) {
        let origin = self.site.origin();
        self.ledger.fail(trouble, || format!("{origin}{}: {reason}", path.as_str()));
    }
}
