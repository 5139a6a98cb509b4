//! Pages that were received and are read once the next request is on its way: what a crawl waits for an answer it has work for, and neither
//! falls asleep nor keeps the site's answer waiting. The next request still follows the last answer, at its pace.

use std::time::{Duration, Instant};

use super::{Stopwatch, TURN, Walk, unix_ms};
use crate::crawl::budget::{Ledger, Policy};
use crate::crawl::fetch::{Answer, FetchError};
use crate::crawl::frontier::Frontier;
use crate::crawl::frontier::keep::Keeper;
use crate::crawl::html::links::LinkExtractor;
use crate::crawl::html::site_path::SitePath;
use crate::crawl::politeness::Grudge;
use crate::crawl::politeness::robots::Rules;

/// Bytes of a page that wait at most; a larger one is read while it comes. Few pages are, and fifty crawls hold 3 MiB, with
/// the room that a growing buffer leaves 6.
const MOST_UNREAD: usize = 64 << 10;
/// Where the newest page took longer to read, the next is read before the next request: its answer would be noticed so much later, and
/// the distance to the site come out longer. An ordinary page takes a tenth. Unoptimised, as tests are, every page would take as long.
const LONG: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_millis(1) };

/// A page that is being received, or was and is not read yet.
pub(in crate::crawl) struct Page {
    links: LinkExtractor,
    /// What came and is not read. A copy: pieces may be a byte each, and each may keep a buffer of the library's.
    held: Vec<u8>,
    received: usize,
    /// How many links away from the start page its links are.
    depth: u32,
}

impl Page {
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

    fn read(&mut self) {
        self.links.write(&std::mem::take(&mut self.held));
    }
}

/// What a step is noted in, without the fetcher, which may be under way meanwhile.
pub(super) struct Notes<'a> {
    pub(super) rules: &'a Rules,
    pub(super) policy: &'a Policy,
    pub(super) frontier: &'a mut Frontier,
    pub(super) keeper: &'a mut Keeper,
    pub(super) ledger: &'a Ledger,
    pub(super) watch: Stopwatch,
}

impl Notes<'_> {
    /// Writes down what was spent, and how the site answered.
    pub(super) fn note_spent(&mut self, grudge: Grudge) {
        let spent = self.frontier.spent_mut();
        self.ledger.write_to(spent);
        spent.millis = u64::try_from(self.watch.elapsed().as_millis()).unwrap_or(u64::MAX);
        let Grudge { turned_away, in_a_row, pause } = grudge;
        (spent.turned_away, spent.failed_in_a_row) = (turned_away, in_a_row);
        spent.paused_until_unix_ms = if pause.is_zero() { 0 } else { unix_ms(crate::session::clock::wall() + pause) };
        self.keeper.show(self.frontier.spent(), self.frontier.waiting());
    }

    /// Queues what robots.txt and the policy allow of these paths. What they do not is nothing that was left out.
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

    async fn read(&mut self, mut page: Page) {
        page.read();
        let links = page.links.finish();
        if links.cut {
            self.frontier.spent_mut().dropped = true;
        }
        self.offer_all(links.paths, page.depth).await;
    }

    async fn end_visit(&mut self, grudge: Grudge) {
        self.note_spent(grudge);
        self.frontier.visited();
        self.keeper.step(self.frontier).await;
    }
}

impl Walk<'_> {
    pub(super) fn notes(&mut self) -> Notes<'_> {
        let Self { rules, policy, frontier, keeper, ledger, watch, .. } = self;
        Notes { rules, policy, frontier, keeper, ledger, watch: *watch }
    }

    /// Ends the step of the path that came last, its page read. The same again does nothing.
    pub(super) async fn catch_up(&mut self) {
        let Some(page) = self.unread.take() else { return };
        let began = Instant::now();
        let mut notes = self.notes();
        notes.read(page).await;
        self.reads_long = began.elapsed() > LONG;
        self.end_visit().await;
    }

    /// Ends the step of a path of which nothing is left to read.
    pub(super) async fn end_visit(&mut self) {
        let grudge = self.fetcher.grudge();
        self.notes().end_visit(grudge).await;
    }

    /// Asks for a URL, and reads the page before it meanwhile.
    pub(super) async fn get(&mut self, url: &reqwest::Url) -> Result<Answer, FetchError> {
        let Some(page) = self.unread.take() else { return self.fetcher.get(url).await };
        let grudge = self.fetcher.grudge();
        let Self { rules, policy, frontier, keeper, ledger, watch, fetcher, .. } = self;
        let mut notes = Notes { rules, policy, frontier, keeper, ledger, watch: *watch };
        let reading = async {
            // What sends the request is a task of its own.
            tokio::task::yield_now().await;
            let began = Instant::now();
            notes.read(page).await;
            let took = began.elapsed();
            notes.end_visit(grudge).await;
            took
        };
        // Together: a request that waits for its turn with the writer may have got it, and must not keep it while this one's page is stored.
        let (answered, took) = futures::join!(fetcher.get(url), reading);
        self.reads_long = took > LONG;
        answered
    }
}
