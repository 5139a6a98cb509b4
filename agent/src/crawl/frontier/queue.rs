//! The frontier of a site: which path is visited next, and which of the offered paths are queued.
//! The queue consists of the log, and of the paths that have been read ahead from the log.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::Path;

use super::checkpoint::{CheckpointState, LogPoints, queue_bytes};
use super::known_paths::{KnownPaths, OfferResult, note};
use super::log::{self, CrawlTotals, FrontierLog, LogError, LogFrame, LogOffset, QueuedPath};
use crate::crawl::html::site_urls::SitePath;
use crate::disk::folder::blocking;
use crate::warc::Recorder;

#[derive(Debug)]
pub(in crate::crawl) struct Frontier {
    pub(super) known: KnownPaths,
    pub(super) queue: Queue,
    pub(super) log_points: LogPoints,
    /// The lengths, in bytes, of the paths that `next` has returned but that are not marked as
    /// visited yet.
    out: VecDeque<u64>,
    /// The frame of the current visit or sitemap, with the paths found so far.
    found: LogFrame,
    pub(super) recorder: Option<Recorder>,
    /// The crawled site, which checkpoints name; empty if no other agent gets a checkpoint.
    pub(super) site: String,
}

impl Frontier {
    /// An empty frontier for a crawl of at most `max_pages` pages. The frontier's file is deleted
    /// when the process ends.
    pub(in crate::crawl) fn temporary(max_depth: u32, max_pages: u32) -> io::Result<Self> {
        let log_points = LogPoints::new(log::first(""));
        Ok(Self::over(FrontierLog::temporary()?, "", KnownPaths::new(max_depth, max_pages), log_points))
    }

    /// Opens the frontier at `path`, with the state that an earlier crawl of the same `owner`
    /// stored. Blocks the thread.
    pub(in crate::crawl) fn open(path: &Path, owner: &str, max_depth: u32, max_pages: u32) -> Result<Self, LogError> {
        let (mut known, mut log_points) = (KnownPaths::new(max_depth, max_pages), LogPoints::new(log::first(owner)));
        // Keep the lengths of the queued paths for `LogPoints`, because the frame of a
        // visit does not contain the visited path.
        let mut waiting = VecDeque::new();
        let log = FrontierLog::open(path, owner, |frame, range| {
            known.apply(frame);
            waiting.extend(frame.queued.iter().map(|queued| u16::try_from(queued.path.len()).unwrap_or(u16::MAX)));
            let visited = if frame.visited { waiting.pop_front() } else { None };
            log_points.note(frame, &range, visited.map_or(0, u64::from));
        })?;
        Ok(Self::over(log, owner, known, log_points))
    }

    fn over(log: FrontierLog, owner: &str, known: KnownPaths, log_points: LogPoints) -> Self {
        let queue = Queue::new(log, log::first(owner), known.visited());
        Self {
            known,
            queue,
            log_points,
            out: VecDeque::new(),
            found: LogFrame::default(),
            recorder: None,
            site: String::new(),
        }
    }

    /// Loads the state of another agent's crawl into this frontier, which must be empty.
    pub(in crate::crawl) fn resume(&mut self, state: &CheckpointState) {
        self.known.apply(&state.0);
        self.push(&state.0);
    }

    pub(super) fn push(&mut self, frame: &LogFrame) {
        let range = self.queue.log.push(frame);
        let visited = if frame.visited { self.out.pop_front() } else { None };
        self.log_points.note(frame, &range, visited.unwrap_or_default());
    }

    pub(in crate::crawl) const fn is_new(&self) -> bool {
        self.known.visited() == 0 && self.known.waiting() == 0
    }

    /// Whether the path has been neither queued nor passed to [`Frontier::mark_known`].
    pub(in crate::crawl) fn is_unseen(&self, path: &SitePath) -> bool {
        !self.known.is_seen(path)
    }

    /// Queues a path found at `depth`, unless the path is known, too deep or a trap, or the queue
    /// is full.
    pub(in crate::crawl) fn offer(&mut self, path: &SitePath, depth: u32) {
        match self.known.offer(path, depth) {
            OfferResult::New => self.found.queued.push(QueuedPath { path: path.as_str().to_owned(), depth }),
            OfferResult::Beyond => note(path, &mut self.found.beyond),
            OfferResult::Trap => note(path, &mut self.found.known),
            OfferResult::LeftOut => {}
        }
    }

    /// Records another site to which the current page links, unless `limit` sites are already
    /// recorded.
    pub(in crate::crawl) fn discover(&mut self, host: String, limit: u32) {
        if self.known.discover(&host, usize::try_from(limit).unwrap_or(usize::MAX)) {
            self.found.hosts.push(host);
        }
    }

    /// The other sites to which pages link, by name.
    pub(in crate::crawl) const fn hosts(&self) -> &BTreeSet<String> {
        self.known.hosts()
    }

    /// Marks the target of a redirect as known. The target is not queued, because it is fetched
    /// immediately. Returns `false` if the target was already known.
    pub(in crate::crawl) fn mark_known(&mut self, path: &SitePath) -> bool {
        let new = self.known.mark_known(path);
        if new {
            note(path, &mut self.found.known);
        }
        new
    }

    /// The next path to fetch. Call [`Frontier::visited`] for the previous path before you offer
    /// paths found on the returned path's page.
    pub(in crate::crawl) async fn next(&mut self) -> io::Result<Option<QueueEntry>> {
        while let Some((bytes, entry)) = self.queue.next().await? {
            self.out.push_back(bytes);
            match entry {
                Some(entry) => return Ok(Some(entry)),
                // Skip an invalid path.
                None => self.visited(),
            }
        }
        Ok(None)
    }

    /// Marks as visited the earliest path that `next` has returned and that is not marked yet. All
    /// paths offered since the previous frame belong to this visit.
    pub(in crate::crawl) fn visited(&mut self) {
        self.known.visit();
        self.found.visited = true;
        self.end_step();
    }

    /// Ends the current frame without marking a path as visited, for example after the start page
    /// or a sitemap's entries have been queued.
    pub(in crate::crawl) fn end_step(&mut self) {
        self.found.totals = *self.known.totals();
        let found = std::mem::take(&mut self.found);
        self.push(&found);
    }

    /// The crawl's totals; the next frame stores them.
    pub(in crate::crawl) const fn totals_mut(&mut self) -> &mut CrawlTotals {
        self.known.totals_mut()
    }

    pub(in crate::crawl) const fn totals(&self) -> &CrawlTotals {
        self.known.totals()
    }

    pub(in crate::crawl) fn has_beyond(&self) -> bool {
        self.known.has_beyond()
    }

    pub(in crate::crawl) const fn waiting(&self) -> u64 {
        self.known.waiting()
    }
}

/// A path and its link depth from the start page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::crawl) struct QueueEntry {
    pub(in crate::crawl) path: SitePath,
    pub(in crate::crawl) depth: u32,
}

/// Returns paths in the order in which the frames of the log added them.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) log: FrontierLog,
    /// The paths that have already been read from the log, and the position of the first frame not
    /// read yet.
    front: VecDeque<QueuedPath>,
    unread: LogOffset,
    /// Number of paths still to skip at the front, because they were visited before the queue was
    /// opened.
    skip: u64,
}

impl Queue {
    /// Opens the queue of a log. The first `visited` paths of the queue are skipped.
    pub(super) const fn new(log: FrontierLog, start: LogOffset, visited: u64) -> Self {
        Self { log, front: VecDeque::new(), unread: start, skip: visited }
    }

    /// The next path, with its length in bytes. An invalid path has no entry.
    pub(super) async fn next(&mut self) -> io::Result<Option<(u64, Option<QueueEntry>)>> {
        loop {
            if let Some(QueuedPath { path, depth }) = self.front.pop_front() {
                // An invalid path can only come from a file that another program wrote.
                let entry = SitePath::stored(&path).map(|path| QueueEntry { path, depth });
                return Ok(Some((queue_bytes(&path), entry)));
            }
            let read = if self.log.is_written(self.unread) {
                let (reader, at) = (self.log.reader(), self.unread);
                blocking(move || reader.read_ahead(at)).await?
            } else {
                self.log.in_memory(self.unread).map(|(frame, next)| (frame.queued, next))
            };
            let Some((queued, next)) = read else { return Ok(None) };
            self.unread = next;
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(queued.len());
            self.skip -= u64::try_from(skipped).expect("no more than there are to skip");
            self.front.extend(queued.into_iter().skip(skipped));
        }
    }
}
