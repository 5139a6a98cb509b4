//! The frontier of a site: a queue of paths in breadth-first order, and the set of seen paths.
//!
//! A path comes out once. The queue is a log on the disk (`log`, `queue`). The finds of one visit
//! form one frame, which counts as a whole or not at all, so a crawl resumes after a restart at the
//! end of its last whole frame. Memory holds only the set of seen paths (`known`, `seen`) and the
//! part of the queue being read. Paths that do not fit are dropped, and the frontier records only
//! *that* paths were dropped: that fact alone decides whether the crawl was complete. Traps
//! (`trap`) are left out and counted.
//!
//! Sitemap entries are queued after the start page and before its links, at depth 1.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::html::site_path::SitePath;
use crate::disk::folder::blocking;
use crate::warc::Recorder;
use checkpoint::{Checkpoint, State};
use known::{Known, Offered, note};
use log::{Frame, Log, Queued};
pub(super) use log::{OpenError, Spent};
use moments::{Moments, bytes};
use queue::Queue;

pub(super) mod checkpoint;
pub(super) mod keep;
mod known;
mod log;
mod moments;
mod queue;
pub(super) mod seen;
#[cfg(test)]
mod tests;
mod trap;

/// Maximum time that finds stay in memory only; a restart finds them again.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// A path and its link depth from the start page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: SitePath,
    pub(super) depth: u32,
}

#[derive(Debug)]
pub(super) struct Frontier {
    known: Known,
    queue: Queue,
    /// The moments that a checkpoint can represent.
    moments: Moments,
    /// The lengths in bytes of paths that came out but are not visited yet.
    out: VecDeque<u64>,
    /// The finds of the current step.
    found: Frame,
    written: Instant,
    recorder: Option<Recorder>,
}

impl Frontier {
    /// An empty frontier for a crawl of `max_pages`; it ends with the process.
    pub(super) fn temporary(max_depth: u32, max_pages: u32) -> io::Result<Self> {
        let moments = Moments::new(log::first(""));
        Ok(Self::over(Log::temporary()?, "", Known::new(max_depth, max_pages), moments))
    }

    /// Opens the frontier at `path` with what an earlier crawl of the same `owner` stored. It
    /// blocks.
    pub(super) fn open(path: &Path, owner: &str, max_depth: u32, max_pages: u32) -> Result<Self, OpenError> {
        let (mut known, mut moments) = (Known::new(max_depth, max_pages), Moments::new(log::first(owner)));
        // The lengths of queued paths: a frame does not name the path whose visit it records.
        let mut waiting = VecDeque::new();
        let log = Log::open(path, owner, |frame, lies| {
            known.apply(frame);
            waiting.extend(frame.queued.iter().map(|queued| u16::try_from(queued.path.len()).unwrap_or(u16::MAX)));
            let visited = if frame.visited { waiting.pop_front() } else { None };
            moments.note(frame, &lies, visited.map_or(0, u64::from));
        })?;
        Ok(Self::over(log, owner, known, moments))
    }

    fn over(log: Log, owner: &str, known: Known, moments: Moments) -> Self {
        let queue = Queue::new(log, log::first(owner), known.visited());
        let (found, written) = (Frame::default(), Instant::now());
        Self { known, queue, moments, out: VecDeque::new(), found, written, recorder: None }
    }

    /// From now on, steps are written only after their pages are stored.
    pub(super) fn store_first(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
    }

    /// Resumes another agent's crawl. Only for an empty frontier.
    pub(super) fn resume(&mut self, state: &State) {
        self.known.apply(&state.0);
        self.push(&state.0);
    }

    fn push(&mut self, frame: &Frame) {
        let lies = self.queue.push(frame);
        let visited = if frame.visited { self.out.pop_front() } else { None };
        self.moments.note(frame, &lies, visited.unwrap_or_default());
    }

    pub(super) const fn is_new(&self) -> bool {
        self.known.visited() == 0 && self.known.waiting() == 0
    }

    /// Whether the path was neither queued nor claimed yet.
    pub(super) fn is_unseen(&self, path: &SitePath) -> bool {
        !self.known.is_seen(path)
    }

    /// Queues a path found at `depth`, unless it is known, too deep, over the page limit or a trap.
    pub(super) fn offer(&mut self, path: &SitePath, depth: u32) {
        match self.known.offer(path, depth) {
            Offered::New => self.found.queued.push(Queued { path: path.as_str().to_owned(), depth }),
            Offered::Beyond => note(path, &mut self.found.beyond),
            Offered::Trap => note(path, &mut self.found.known),
            Offered::LeftOut => {}
        }
    }

    /// Claims a path that is to be fetched at once (a redirect's target); `false` when it is
    /// already known.
    pub(super) fn claim(&mut self, path: &SitePath) -> bool {
        let new = self.known.claim(path);
        if new {
            note(path, &mut self.found.known);
        }
        new
    }

    /// The next path to fetch. Call [`Frontier::visited`] for the previous path before offering
    /// finds of this one.
    pub(super) async fn next(&mut self) -> io::Result<Option<Entry>> {
        while let Some(queued) = self.queue.next().await? {
            self.out.push_back(bytes(&queued.path));
            match SitePath::stored(&queued.path) {
                Some(path) => return Ok(Some(Entry { path, depth: queued.depth })),
                // Only a file written by another program holds an invalid path.
                None => self.visited(),
            }
        }
        Ok(None)
    }

    /// Marks the previous path as visited; everything found since belongs to it.
    pub(super) fn visited(&mut self) {
        self.known.visit();
        self.found.visited = true;
        self.end_step();
    }

    /// Ends a step whose finds belong to no path: the start page, or a sitemap's entries.
    pub(super) fn end_step(&mut self) {
        self.found.spent = *self.known.spent();
        let found = std::mem::take(&mut self.found);
        self.push(&found);
    }

    /// Writes what the crawl has spent, during a step, which stays unfinished.
    pub(super) async fn note_spent(&mut self) -> io::Result<()> {
        self.push(&Frame { spent: *self.known.spent(), ..Frame::default() });
        self.write().await
    }

    /// What the crawl has spent in total; the next step stores it.
    pub(super) const fn spent_mut(&mut self) -> &mut Spent {
        self.known.spent_mut()
    }

    pub(super) const fn spent(&self) -> &Spent {
        self.known.spent()
    }

    /// Whether steps should be written before the crawl continues.
    pub(super) fn is_due(&self) -> bool {
        self.queue.is_due() || self.written.elapsed() >= WRITE_EVERY
    }

    /// Writes the unwritten steps. May be called again after an error or a cancellation.
    pub(super) async fn write(&mut self) -> io::Result<()> {
        if let Some(recorder) = &self.recorder {
            // A page that counts as visited is never fetched again.
            recorder.stored().await?;
        }
        self.queue.write().await?;
        self.written = Instant::now();
        Ok(())
    }

    /// The state after the last step, for another agent. Every page it counts as visited is synced
    /// to the disk: a crash of this machine must not lose a page that no agent would fetch again.
    pub(super) async fn checkpoint(&mut self) -> io::Result<Checkpoint> {
        self.write().await?;
        if let Some(recorder) = &self.recorder {
            recorder.synced().await?;
        }
        self.queue.sync().await?;
        let (reader, moments) = (self.queue.reader(), self.moments.clone());
        let (checkpoint, size) = blocking(move || checkpoint::encode(&reader, &moments)).await?;
        self.moments.size = size;
        Ok(checkpoint)
    }

    /// Whether there are paths beyond the depth limit that were not reached another way.
    pub(super) fn has_beyond(&self) -> bool {
        self.known.has_beyond()
    }

    pub(super) const fn waiting(&self) -> u64 {
        self.known.waiting()
    }
}
