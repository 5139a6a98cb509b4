//! Reads a received page (extracts and queues its links) while the crawl waits for the response to
//! its next request. Reading therefore costs the crawl no time. It does not change when requests
//! are sent.

use std::time::{Duration, Instant};

use super::Walk;
use super::unread_page::UnreadPage;
use crate::crawl::budget::{Ledger, Policy};
use crate::crawl::fetch::{CrawlResponse, FetchError};
use crate::crawl::frontier::Frontier;
use crate::crawl::frontier::storage::StateWriter;
use crate::crawl::html::site_path::SitePath;
use crate::crawl::politeness::PolitenessState;
use crate::crawl::politeness::robots::RobotsRules;
use crate::crawl::stopwatch::{Stopwatch, unix_ms};

/// Maximum time to process links before the crawl yields to other tokio tasks. robots.txt may have
/// thousands of rules, and each link is matched against all of them.
const TURN: Duration = Duration::from_millis(5);
/// If reading the newest page took longer than this, the crawl reads the next page before it sends
/// the next request. Otherwise the crawl would process the response late, and measure too long a
/// round trip. An ordinary page takes a tenth of this time. In tests the limit is higher, because
/// without optimisation every page would exceed it.
const LONG: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_millis(1) };

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
    /// Updates the frontier's totals from the ledger and the politeness state.
    pub(super) fn note_totals(&mut self, politeness_state: PolitenessState) {
        let totals = self.frontier.totals_mut();
        self.ledger.write_to(totals);
        totals.millis = u64::try_from(self.watch.elapsed().as_millis()).unwrap_or(u64::MAX);
        let PolitenessState { turned_away, in_a_row, pause } = politeness_state;
        (totals.turned_away, totals.failed_in_a_row) = (turned_away, in_a_row);
        totals.paused_until_unix_ms = if pause.is_zero() { 0 } else { unix_ms(crate::clock::wall() + pause) };
        self.state_writer.show(self.frontier.totals(), self.frontier.waiting());
    }

    /// Queues the paths that robots.txt and the policy allow. Paths that they forbid do not make
    /// the crawl incomplete.
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

    async fn read(&mut self, page: UnreadPage) {
        let depth = page.depth;
        let links = page.finish();
        if links.cut {
            self.frontier.totals_mut().dropped = true;
        }
        links.hosts.into_iter().for_each(|host| self.frontier.discover(host, self.policy.max_hosts));
        self.offer_all(links.paths, depth).await;
    }

    async fn end_visit(&mut self, politeness_state: PolitenessState) {
        self.note_totals(politeness_state);
        self.frontier.visited();
        self.state_writer.step(self.frontier).await;
    }
}

impl Walk<'_> {
    pub(super) fn step_state(&mut self) -> StepState<'_> {
        let Self { rules, policy, frontier, state_writer, ledger, watch, .. } = self;
        StepState { rules, policy, frontier, state_writer, ledger, watch: *watch }
    }

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
        let politeness_state = self.fetcher.politeness_state();
        self.step_state().end_visit(politeness_state).await;
    }

    /// Requests a URL, and reads the previous page while it waits for the response.
    pub(super) async fn get(&mut self, url: &reqwest::Url) -> Result<CrawlResponse, FetchError> {
        let Some(page) = self.unread.take() else { return self.fetcher.get(url).await };
        let politeness_state = self.fetcher.politeness_state();
        let Self { rules, policy, frontier, state_writer, ledger, watch, fetcher, .. } = self;
        let mut step_state = StepState { rules, policy, frontier, state_writer, ledger, watch: *watch };
        let reading = async {
            // Yield first, so that the connection's tokio task can send the request.
            tokio::task::yield_now().await;
            let began = Instant::now();
            step_state.read(page).await;
            let took = began.elapsed();
            step_state.end_visit(politeness_state).await;
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
