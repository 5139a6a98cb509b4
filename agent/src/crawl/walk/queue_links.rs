//! Queues the links of a page and the entries of a sitemap, and ends the visit to a path.

use std::time::{Duration, Instant};

use super::unread_page::UnreadPage;
use crate::crawl::budget::{Ledger, Policy};
use crate::crawl::frontier::Frontier;
use crate::crawl::frontier::state_writer::StateWriter;
use crate::crawl::html::site_path::SitePath;
use crate::crawl::politeness::PolitenessState;
use crate::crawl::politeness::robots::RobotsRules;
use crate::crawl::stopwatch::{Stopwatch, unix_ms};
use crate::machine::clock;

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
    /// Updates the frontier's totals from the ledger and the politeness state.
    pub(super) fn note_totals(&mut self, politeness_state: PolitenessState) {
        let totals = self.frontier.totals_mut();
        self.ledger.write_to(totals);
        totals.millis = u64::try_from(self.watch.elapsed().as_millis()).unwrap_or(u64::MAX);
        let PolitenessState { turned_away, in_a_row, pause } = politeness_state;
        (totals.turned_away, totals.failed_in_a_row) = (turned_away, in_a_row);
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
    pub(super) async fn end_visit(&mut self, politeness_state: PolitenessState) {
        self.note_totals(politeness_state);
        self.frontier.visited();
        self.state_writer.step(self.frontier).await;
    }
}
