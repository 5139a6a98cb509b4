//! The frontier of a site: a queue of paths in breadth-first order, and the set of seen paths.
//!
//! The frontier returns each path once. The queue is a log on the disk (`log`, `queue`). Each visit
//! to a path and each sitemap adds one frame (a record) to the log. An incomplete frame is ignored,
//! so after a restart a crawl resumes at the end of its last whole frame. Memory holds only the set
//! of seen paths (`known_paths`, `fingerprint_set`) and the part of the queue that is being read.
//! If the queue is full, new paths are dropped. The frontier does not record the dropped paths,
//! only that the crawl is no longer complete. Links into traps (`trap`) are counted but not queued.
//!
//! Sitemap entries have depth 1 and are queued after the start page, before its links.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::path::Path;

use super::html::site_path::SitePath;
use crate::disk::folder::blocking;
use crate::warc::Recorder;
use checkpoint::{Checkpoint, CheckpointState};
use known_paths::{KnownPaths, OfferResult, note};
pub(super) use log::{CrawlTotals, LogError};
use log::{FrontierLog, LogFrame, QueuedPath};
use log_points::{LogPoints, bytes};
use queue::Queue;

pub(super) mod checkpoint;
mod checkpoint_limits;
mod checkpoint_schedule;
pub(super) mod crawl_storage;
pub(super) mod fingerprint_set;
mod known_paths;
mod log;
mod log_points;
mod queue;
pub(super) mod state_writer;
#[cfg(test)]
mod tests;
mod trap;

/// A path and its link depth from the start page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct QueueEntry {
    pub(super) path: SitePath,
    pub(super) depth: u32,
}

#[derive(Debug)]
pub(super) struct Frontier {
    known: KnownPaths,
    queue: Queue,
    log_points: LogPoints,
    /// The lengths, in bytes, of the paths that `next` has returned but that are not marked as
    /// visited yet.
    out: VecDeque<u64>,
    /// The frame of the current visit or sitemap, with the paths found so far.
    found: LogFrame,
    recorder: Option<Recorder>,
}

impl Frontier {
    /// An empty frontier for a crawl of at most `max_pages` pages. The frontier's file is deleted
    /// when the process ends.
    pub(super) fn temporary(max_depth: u32, max_pages: u32) -> io::Result<Self> {
        let log_points = LogPoints::new(log::first(""));
        Ok(Self::over(FrontierLog::temporary()?, "", KnownPaths::new(max_depth, max_pages), log_points))
    }

    /// Opens the frontier at `path`, with the state that an earlier crawl of the same `owner`
    /// stored. Blocks the thread.
    pub(super) fn open(path: &Path, owner: &str, max_depth: u32, max_pages: u32) -> Result<Self, LogError> {
        let (mut known, mut log_points) = (KnownPaths::new(max_depth, max_pages), LogPoints::new(log::first(owner)));
        // Keep the lengths of the queued paths for `log_points`, because the frame of a
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
        Self { known, queue, log_points, out: VecDeque::new(), found: LogFrame::default(), recorder: None }
    }

    /// After this call, a visited path is recorded in the log only after its pages are stored.
    pub(super) fn store_first(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
    }

    /// Loads the state of another agent's crawl into this frontier, which must be empty.
    pub(super) fn resume(&mut self, state: &CheckpointState) {
        self.known.apply(&state.0);
        self.push(&state.0);
    }

    fn push(&mut self, frame: &LogFrame) {
        let range = self.queue.push(frame);
        let visited = if frame.visited { self.out.pop_front() } else { None };
        self.log_points.note(frame, &range, visited.unwrap_or_default());
    }

    pub(super) const fn is_new(&self) -> bool {
        self.known.visited() == 0 && self.known.waiting() == 0
    }

    /// Whether the path has been neither queued nor passed to [`Frontier::mark_known`].
    pub(super) fn is_unseen(&self, path: &SitePath) -> bool {
        !self.known.is_seen(path)
    }

    /// Queues a path found at `depth`, unless the path is known, too deep or a trap, or the queue
    /// is full.
    pub(super) fn offer(&mut self, path: &SitePath, depth: u32) {
        match self.known.offer(path, depth) {
            OfferResult::New => self.found.queued.push(QueuedPath { path: path.as_str().to_owned(), depth }),
            OfferResult::Beyond => note(path, &mut self.found.beyond),
            OfferResult::Trap => note(path, &mut self.found.known),
            OfferResult::LeftOut => {}
        }
    }

    /// Records another site to which the current page links, unless `limit` sites are already
    /// recorded.
    pub(super) fn discover(&mut self, host: String, limit: u32) {
        if self.known.discover(&host, usize::try_from(limit).unwrap_or(usize::MAX)) {
            self.found.hosts.push(host);
        }
    }

    /// The other sites to which pages link, by name.
    pub(super) const fn hosts(&self) -> &BTreeSet<String> {
        self.known.hosts()
    }

    /// Marks the target of a redirect as known. The target is not queued, because it is fetched
    /// immediately. Returns `false` if the target was already known.
    pub(super) fn mark_known(&mut self, path: &SitePath) -> bool {
        let new = self.known.mark_known(path);
        if new {
            note(path, &mut self.found.known);
        }
        new
    }

    /// The next path to fetch. Call [`Frontier::visited`] for the previous path before you offer
    /// paths found on the returned path's page.
    pub(super) async fn next(&mut self) -> io::Result<Option<QueueEntry>> {
        while let Some(queued) = self.queue.next().await? {
            self.out.push_back(bytes(&queued.path));
            match SitePath::stored(&queued.path) {
                Some(path) => return Ok(Some(QueueEntry { path, depth: queued.depth })),
                // An invalid path can only come from a file that another program wrote. Skip it.
                None => self.visited(),
            }
        }
        Ok(None)
    }

    /// Marks as visited the earliest path that `next` has returned and that is not marked yet. All
    /// paths offered since the previous frame belong to this visit.
    pub(super) fn visited(&mut self) {
        self.known.visit();
        self.found.visited = true;
        self.end_step();
    }

    /// Ends the current frame without marking a path as visited, for example after the start page
    /// or a sitemap's entries have been queued.
    pub(super) fn end_step(&mut self) {
        self.found.totals = *self.known.totals();
        let found = std::mem::take(&mut self.found);
        self.push(&found);
    }

    /// Writes the crawl's totals without ending the current visit.
    pub(super) async fn note_totals(&mut self) -> io::Result<()> {
        self.push(&LogFrame { totals: *self.known.totals(), ..LogFrame::default() });
        self.write().await
    }

    /// The crawl's totals; the next frame stores them.
    pub(super) const fn totals_mut(&mut self) -> &mut CrawlTotals {
        self.known.totals_mut()
    }

    pub(super) const fn totals(&self) -> &CrawlTotals {
        self.known.totals()
    }

    /// Whether the frames in memory should be written before the crawl continues.
    pub(super) fn is_due(&self) -> bool {
        self.queue.is_due()
    }

    /// Writes the frames that are only in memory. May be called again after an error or a
    /// cancellation.
    pub(super) async fn write(&mut self) -> io::Result<()> {
        if let Some(recorder) = &self.recorder {
            // Store the pages first, because a page that counts as visited is never fetched again.
            recorder.stored().await?;
        }
        self.queue.write().await
    }

    /// The state after the last frame, for another agent. The visited pages are synced to the disk
    /// first, because no agent fetches them again, even after a crash of this machine.
    pub(super) async fn checkpoint(&mut self) -> io::Result<Checkpoint> {
        self.write().await?;
        if let Some(recorder) = &self.recorder {
            recorder.synced().await?;
        }
        self.queue.sync().await?;
        let (reader, log_points, hosts) = (self.queue.reader(), self.log_points.clone(), self.hosts().clone());
        let (checkpoint, size) = blocking(move || checkpoint::encode(&reader, &log_points, &hosts)).await?;
        self.log_points.size = size;
        Ok(checkpoint)
    }

    pub(super) fn has_beyond(&self) -> bool {
        self.known.has_beyond()
    }

    pub(super) const fn waiting(&self) -> u64 {
        self.known.waiting()
    }
}
