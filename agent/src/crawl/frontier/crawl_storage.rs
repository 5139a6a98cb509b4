//! Opens the frontier of a crawl from this agent's disk, or from another agent's checkpoint. Writes
//! a running crawl's state to the disk, after its pages, and decides when to report a checkpoint.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::checkpoint::{self, Checkpoint, CheckpointState};
use super::log::{CrawlTotals, LogError, LogFrame};
use super::queue::Frontier;
use crate::crawl::politeness::RateState;
use crate::disk::folder::blocking;
use crate::warc::Recorder;

/// Where to store a crawl's state and pages, and the checkpoint from which the crawl resumes.
#[derive(Default)]
pub struct CrawlStorage {
    /// The file for the crawl's state; if `None`, the state is not stored.
    pub file: Option<PathBuf>,
    /// The history in which the crawl's lease was granted; 0 if unknown, or if there is no lease. The
    /// state that a crawl of another history stored is not used.
    pub history: i64,
    /// The checkpoint that the scheduler sent with the lease; empty if there is none.
    pub checkpoint: Vec<u8>,
    pub on_snapshot: Option<SnapshotSink>,
    /// Stores the pages; if `None`, no pages are stored.
    pub recorder: Option<Recorder>,
    pub progress: Option<watch::Sender<CrawlProgress>>,
    /// Cancelled when another agent is to resume the crawl. The crawl then sends no more requests,
    /// waits out the request interval, and ends.
    pub preempted: CancellationToken,
}

impl CrawlStorage {
    /// Opens the frontier of the site's crawl from the file or from the checkpoint, whichever has
    /// progressed further. The state of another site is not used.
    pub(in crate::crawl) async fn open(
        self,
        site: &str,
        max_depth: u32,
        max_pages: u32,
    ) -> io::Result<(Frontier, StateWriter)> {
        let Self { file, history, checkpoint, on_snapshot, recorder, progress, .. } = self;
        let site = site.to_owned();
        let open = move || {
            let owner = FileOwner { site: &site, history };
            let mut frontier = open_blocking(file.as_deref(), &checkpoint, owner, max_depth, max_pages)?;
            frontier.site = site;
            io::Result::Ok(frontier)
        };
        let mut frontier = blocking(open).await?;
        frontier.store_first(recorder);
        Ok((frontier, StateWriter::new(on_snapshot, progress)))
    }
}

/// Whose crawl a file stores.
#[derive(Debug, Clone, Copy)]
struct FileOwner<'a> {
    site: &'a str,
    history: i64,
}

impl FileOwner<'_> {
    /// The owner's name in the file.
    fn name(self) -> String {
        let Self { site, history } = self;
        // The file of a one-off crawl names only the site.
        if history == 0 { site.to_owned() } else { format!("{site} {history}") }
    }
}

fn open_blocking(
    file: Option<&Path>,
    checkpoint: &[u8],
    owner: FileOwner<'_>,
    max_depth: u32,
    max_pages: u32,
) -> io::Result<Frontier> {
    let name = owner.name();
    let open = || match file {
        None => Ok(None),
        Some(file) => match Frontier::open(file, &name, max_depth, max_pages) {
            Ok(frontier) => Ok(Some(frontier)),
            // An earlier crawl still has the file locked, but is being stopped. The new crawl runs
            // without storing its state.
            Err(taken @ LogError::Taken(_)) => {
                tracing::warn!(error = %taken, "a crawl's state is not stored");
                Ok(None)
            }
            Err(LogError::Io(_, error)) => Err(error),
        },
    };
    let here = open()?;
    let state = match checkpoint {
        [] => None,
        bytes => CheckpointState::read(bytes)
            .and_then(|state| state.of(owner.site))
            .inspect_err(|error| tracing::warn!(%error, "cannot read another agent's checkpoint; its work is repeated"))
            .ok(),
    };
    // The checkpoint is used if the local frontier is new, or if the checkpoint has more pages. If
    // neither the checkpoint nor the local frontier has a page, the local frontier is used, because
    // it may contain a pause that the site requires.
    let is_further =
        |state: &CheckpointState| here.as_ref().is_none_or(|here| here.is_new() || state.pages() > here.totals().pages);
    let Some(state) = state.filter(is_further) else {
        return here.map_or_else(|| Frontier::temporary(max_depth, max_pages), Ok);
    };
    let mut frontier = match (file, here) {
        (Some(file), Some(here)) => {
            // Release the file's lock before overwriting the file.
            drop(here);
            std::fs::remove_file(file)?;
            open()?
        }
        (_, here) => here,
    }
    .map_or_else(|| Frontier::temporary(max_depth, max_pages), Ok)?;
    frontier.resume(&state);
    Ok(frontier)
}

/// Delay before the next attempt after a failed write.
const RETRY: Duration = Duration::from_secs(1);

/// An agent's report to the scheduler about an unfinished crawl.
#[derive(Debug, Clone)]
pub struct CrawlSnapshot {
    pub checkpoint: Checkpoint,
    pub rate_state: RateState,
    /// The newest error; empty if there is none.
    pub last_error: String,
}

/// Receives the reports of a crawl. Must not block.
pub type SnapshotSink = Box<dyn Fn(CrawlSnapshot) + Send + Sync>;

/// The progress of a crawl, for display.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CrawlProgress {
    pub pages: u32,
    pub bytes: u64,
    pub queued: u64,
    pub errors: u32,
    /// End of the current pause, if any.
    pub paused_until: Option<SystemTime>,
}

impl Frontier {
    /// After this call, a visited path is recorded in the log only after its pages are stored.
    fn store_first(&mut self, recorder: Option<Recorder>) {
        self.recorder = recorder;
    }

    /// Writes the crawl's totals without ending the current visit.
    pub(in crate::crawl) async fn note_totals(&mut self) -> io::Result<()> {
        self.push(&LogFrame { totals: *self.known.totals(), ..LogFrame::default() });
        self.write().await
    }

    /// Whether the frames in memory should be written before the crawl continues.
    pub(in crate::crawl) fn is_due(&self) -> bool {
        self.queue.log.is_due()
    }

    /// Writes the frames that are only in memory. May be called again after an error or a
    /// cancellation.
    pub(in crate::crawl) async fn write(&mut self) -> io::Result<()> {
        if let Some(recorder) = &self.recorder {
            // Store the pages first, because a page that counts as visited is never fetched again.
            recorder.stored().await?;
        }
        self.queue.log.write().await
    }

    /// The state after the last frame, for another agent. The visited pages are synced to the disk
    /// first, because no agent fetches them again, even after a crash of this machine.
    pub(in crate::crawl) async fn checkpoint(&mut self) -> io::Result<Checkpoint> {
        self.write().await?;
        if let Some(recorder) = &self.recorder {
            recorder.synced().await?;
        }
        self.queue.log.sync().await?;
        let (reader, log_points, hosts) = (self.queue.log.reader(), self.log_points.clone(), self.hosts().clone());
        let site = self.site.clone();
        let (checkpoint, size) = blocking(move || checkpoint::encode(&reader, &log_points, &site, &hosts)).await?;
        self.log_points.size = size;
        Ok(checkpoint)
    }
}

pub(in crate::crawl) struct StateWriter {
    on_snapshot: Option<SnapshotSink>,
    /// The time of the last report, or of the crawl's start.
    reported_at: Instant,
    /// Whether the crawl was paused at the last call of `is_due`.
    paused: bool,
    failing: bool,
    progress: Option<watch::Sender<CrawlProgress>>,
}

impl StateWriter {
    pub(super) fn new(on_snapshot: Option<SnapshotSink>, progress: Option<watch::Sender<CrawlProgress>>) -> Self {
        Self { on_snapshot, reported_at: Instant::now(), paused: false, failing: false, progress }
    }

    /// Writes the frontier if that is due. Call this after every visit and every sitemap. A failed
    /// write is retried until it succeeds; the crawl waits meanwhile.
    pub(in crate::crawl) async fn step(&mut self, frontier: &mut Frontier) {
        while frontier.is_due() {
            match frontier.write().await {
                Ok(()) => self.failing = false,
                Err(error) => {
                    if !self.failing {
                        tracing::error!(%error, "cannot write a crawl's state to the disk; the crawl waits");
                    }
                    self.failing = true;
                    sleep(RETRY).await;
                }
            }
        }
    }

    pub(in crate::crawl) fn show(&self, totals: &CrawlTotals, queued: u64) {
        if let Some(progress) = &self.progress {
            let CrawlTotals { pages, bytes, errors, paused_until_unix_ms, .. } = *totals;
            let until = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(paused_until_unix_ms));
            let paused_until = until.filter(|_| paused_until_unix_ms > 0);
            progress.send_replace(CrawlProgress { pages, bytes, queued, errors, paused_until });
        }
    }

    /// Whether to report to the scheduler now. Reports are due once a minute, and also when a pause
    /// begins, because a paused crawl sends no reports.
    pub(in crate::crawl) fn is_due(&mut self, paused: bool) -> bool {
        let was_paused = std::mem::replace(&mut self.paused, paused);
        let pause_begins = paused && !was_paused;
        self.on_snapshot.is_some() && (pause_begins || self.reported_at.elapsed() >= CHECKPOINT_EVERY)
    }

    pub(in crate::crawl) fn report(&mut self, snapshot: CrawlSnapshot) {
        if let Some(on_snapshot) = &self.on_snapshot {
            on_snapshot(snapshot);
            self.reported_at = Instant::now();
        }
    }
}

/// Interval between checkpoints of a crawl. If an agent is lost, the next agent repeats at most the
/// part of the crawl since the last checkpoint.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(60);
