//! Requests a page, again while the site answers with 429 or 503. Receives its body within the
//! limits of a page and of the crawl, and reads it while the crawl waits for the next response.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::visit_pages::{StepState, UnreadPage, Walk};
use crate::crawl::fetch::CrawlResponse;
use crate::crawl::fetch::failure_cause::{FetchError, Trouble};
use crate::crawl::html::links::LinkExtractor;
use crate::crawl::html::site_urls::SitePath;
use crate::crawl::outcome::{Blocker, WalkEnd};
use crate::crawl::policy_and_budget::Budget;
use crate::crawl::politeness::page_directives::header_forbids_following;
use crate::crawl::politeness::pauses::ATTEMPTS;

impl Walk<'_> {
    /// Sends a request. While the site responds with 429 or 503, repeats the request up to
    /// [`ATTEMPTS`] times in total, so that pages of a busy site are not missed. `None`
    /// if the request failed.
    pub(super) async fn request(&mut self, path: &SitePath, depth: u32) -> Result<Option<CrawlResponse>, WalkEnd> {
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
}

/// Maximum body bytes of one page. A larger page counts as an error.
pub(in crate::crawl) const MAX_PAGE_BYTES: u64 = 5 << 20;

enum Body {
    Whole,
    TooLarge,
    Broken(FetchError),
}

impl Walk<'_> {
    /// Receives a response that is not a redirect, and queues its links.
    pub(super) async fn take(&mut self, answer: CrawlResponse, path: &SitePath, depth: u32) -> Result<(), WalkEnd> {
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
    pub(super) async fn discard(&mut self, answer: CrawlResponse) -> Result<(), WalkEnd> {
        let (ledger, policy) = (&mut self.ledger, &self.policy);
        let spend = |bytes| {
            ledger.receive_unwanted(bytes);
            if ledger.overdrawn(policy) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        answer.discard(spend).await;
        if self.ledger.overdrawn(&self.policy) { Err(WalkEnd::Cut(Budget::Bytes)) } else { Ok(()) }
    }
}

/// If reading the newest page took longer than this, the crawl reads the next page before it sends
/// the next request. If the crawl read a slow page while it waits, it would process the response
/// late, and measure too long a round trip. An ordinary page takes a tenth of this time. In tests
/// the limit is higher, because without optimisation every page would exceed it.
const LONG: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_millis(1) };

impl Walk<'_> {
    /// Reads the newest page, if it is unread, and ends its visit.
    pub(super) async fn catch_up(&mut self) {
        let Some(page) = self.unread.take() else { return };
        let began = Instant::now();
        let mut step_state = self.step_state();
        step_state.read(page).await;
        self.reads_long = began.elapsed() > LONG;
        self.end_visit().await;
    }

    /// Ends the visit to a path whose page was read, or that had no page.
    pub(super) async fn end_visit(&mut self) {
        let rate_state = self.fetcher.rate_state();
        self.step_state().end_visit(rate_state).await;
    }

    /// Requests a URL, and reads the previous page while it waits for the response.
    async fn get(&mut self, url: &reqwest::Url) -> Result<CrawlResponse, FetchError> {
        let Some(page) = self.unread.take() else { return self.fetcher.get(url).await };
        let rate_state = self.fetcher.rate_state();
        let Self { rules, policy, frontier, state_writer, ledger, watch, fetcher, .. } = self;
        let mut step_state = StepState { rules, policy, frontier, state_writer, ledger, watch: *watch };
        let reading = async {
            // Yield first, so that the connection's tokio task can send the request.
            tokio::task::yield_now().await;
            let began = Instant::now();
            step_state.read(page).await;
            let took = began.elapsed();
            step_state.end_visit(rate_state).await;
            took
        };
        // Run the request and the reading concurrently, because both may wait for room in the queue
        // of the writer that stores pages. If only the reading were polled, it could wait for room
        // that the request holds.
        let (answered, took) = futures_util::join!(fetcher.get(url), reading);
        self.reads_long = took > LONG;
        answered
    }
}
