//! Reads a received page (extracts and queues its links) while the crawl waits for the response to
//! its next request. Reading therefore costs the crawl no time, and does not change when requests
//! are sent.

use std::time::{Duration, Instant};

use super::queue_links::StepState;
use super::visit_pages::Walk;
use crate::crawl::fetch::CrawlResponse;
use crate::crawl::fetch::failure_cause::FetchError;

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
