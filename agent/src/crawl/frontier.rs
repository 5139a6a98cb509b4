//! What is still to be fetched of a site: a queue in breadth-first order, and what was seen.
//!
//! A path comes out once. The queue is a log on the disk (`log`, `queue`): what a visit found is one frame of it, counted whole or
//! not at all, so a crawl goes on after a restart where its last whole frame ends, and memory holds only the set of what was
//! seen (`known`, `seen`) and the part of the queue that is being read. What does not fit is dropped and noted *that* something was,
//! because that fact alone decides whether the crawl was complete; what leads into a trap (`trap`) is left out and counted.
//!
//! Sitemap entries are queued after the start page and before its links, one link away from it.

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

/// How long what was found stays in memory at most: after a restart it is found once more.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// A path and how many links it is away from the start page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) path: SitePath,
    pub(super) depth: u32,
}

#[derive(Debug)]
pub(super) struct Frontier {
    known: Known,
    queue: Queue,
    /// Of which moment a checkpoint can be.
    moments: Moments,
    /// The bytes of the paths that came out and are not visited yet.
    out: VecDeque<u64>,
    /// What the step under way found.
    found: Frame,
    written: Instant,
    recorder: Option<Recorder>,
}

impl Frontier {
    /// An empty frontier, for a crawl of `max_pages`, that is gone with the process.
    pub(super) fn temporary(max_depth: u32, max_pages: u32) -> io::Result<Self> {
        let moments = Moments::new(log::first(""));
        Ok(Self::over(Log::temporary()?, "", Known::new(max_depth, max_pages), moments))
    }

    /// The frontier at `path`, with what a former crawl of the same `owner` left there. It blocks.
    pub(super) fn open(path: &Path, owner: &str, max_depth: u32, max_pages: u32) -> Result<Self, OpenError> {
        let (mut known, mut moments) = (Known::new(max_depth, max_pages), Moments::new(log::first(owner)));
        // The lengths of paths that wait: which is visited by a frame is not written in it.
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

    /// From now on steps are written after what they fetched was stored.
    pub(super) fn store_first(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
    }

    /// Goes on where another agent stopped. For a frontier that knows nothing yet.
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

    /// Queues a path that was found `depth` links away from the start page, unless it is known, too far, too many or a trap.
    pub(super) fn offer(&mut self, path: &SitePath, depth: u32) {
        match self.known.offer(path, depth) {
            Offered::New => self.found.queued.push(Queued { path: path.as_str().to_owned(), depth }),
            Offered::Beyond => note(path, &mut self.found.beyond),
            Offered::Trap => note(path, &mut self.found.known),
            Offered::LeftOut => {}
        }
    }

    /// Takes a path that is to be fetched at once (a redirect's target); `false` when it is known already.
    pub(super) fn claim(&mut self, path: &SitePath) -> bool {
        let new = self.known.claim(path);
        if new {
            note(path, &mut self.found.known);
        }
        new
    }

    /// The next path to fetch. The one before it must be [`Frontier::visited`] before anything is found at this one.
    pub(super) async fn next(&mut self) -> io::Result<Option<Entry>> {
        while let Some(queued) = self.queue.next().await? {
            self.out.push_back(bytes(&queued.path));
            match SitePath::stored(&queued.path) {
                Some(path) => return Ok(Some(Entry { path, depth: queued.depth })),
                // Only a file that somebody else wrote to holds such a thing.
                None => self.visited(),
            }
        }
        Ok(None)
    }

    /// The path that came last was visited; what was found since belongs to it.
    pub(super) fn visited(&mut self) {
        self.known.visit();
        self.found.visited = true;
        self.end_step();
    }

    /// What was found since the last step belongs to no path: the start page, or a sitemap's entries.
    pub(super) fn end_step(&mut self) {
        self.found.spent = *self.known.spent();
        let found = std::mem::take(&mut self.found);
        self.push(&found);
    }

    /// Writes down what the crawl has spent, in the middle of a step, which stays unfinished.
    pub(super) async fn note_spent(&mut self) -> io::Result<()> {
        self.push(&Frame { spent: *self.known.spent(), ..Frame::default() });
        self.write().await
    }

    /// What the crawl has spent in all, to be kept with the next step.
    pub(super) const fn spent_mut(&mut self) -> &mut Spent {
        self.known.spent_mut()
    }

    pub(super) const fn spent(&self) -> &Spent {
        self.known.spent()
    }

    /// Whether steps should be written before the crawl goes on.
    pub(super) fn is_due(&self) -> bool {
        self.queue.is_due() || self.written.elapsed() >= WRITE_EVERY
    }

    /// Writes the steps that are not written yet. Failed or dropped half way, it may be called again.
    pub(super) async fn write(&mut self) -> io::Result<()> {
        if let Some(recorder) = &self.recorder {
            // A page that counts as visited is never fetched again.
            recorder.stored().await?;
        }
        self.queue.write().await?;
        self.written = Instant::now();
        Ok(())
    }

    /// The state after the last step, for another agent. What it says was visited is on the disk: no end of this machine takes a page
    /// away that nobody will fetch again.
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

    /// Whether there are paths beyond the depth that were not reached another way.
    pub(super) fn has_beyond(&self) -> bool {
        self.known.has_beyond()
    }

    pub(super) const fn waiting(&self) -> u64 {
        self.known.waiting()
    }
}
