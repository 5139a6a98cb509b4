//! The store of fetched pages, which all crawls of an agent share: records the pages of each crawl,
//! writes them one after another on tokio's threads for blocking tasks, and lets crawls wait until
//! their pages are stored.
//!
//! While writes fail, or the disk has too little free space, crawls pause. The writer keeps the
//! exchanges and retries.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::folder;
use super::recording::{AnsweredRequest, Body, CrawlIdentity, EndedExchanges, Exchange, Recording};
use super::warc_file::VolumeSeries;
use crate::config::StoreConfig;
use crate::disk::folder::{FolderError, blocking};
use crate::machine::free_space::{FreeSpaceLimit, free_bytes};

/// Maximum number of responses that wait for the writer, each with at most 256 KiB in memory.
/// Crawls wait while the queue is full.
const QUEUE: usize = 32;
/// Time limit for writing the last responses when the agent stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The error message once the writer has ended.
pub(super) const GONE: &str = "pages are no longer stored";

#[derive(Debug, Clone)]
pub struct Store {
    pub(super) folder: Arc<Path>,
    messages: mpsc::Sender<Message>,
    pub(super) paused: watch::Receiver<Option<String>>,
    closing: CancellationToken,
    writing: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Store {
    /// Opens the folder, which is created if missing, and completes the files that an earlier
    /// process left open. `name` becomes part of the file names.
    pub fn open(config: &StoreConfig, name: &str) -> Result<Self, FolderError> {
        let StoreConfig { folder, max_file_bytes, min_free_bytes } = config;
        let lock = folder::take(folder)?;
        let series = VolumeSeries::new(folder.clone(), lock, name.to_owned(), *max_file_bytes);
        let mut space_limit = FreeSpaceLimit::new(*min_free_bytes);
        let free = free_bytes(folder).map_err(|source| folder::FOLDER.unusable(folder, source))?;
        let full = space_limit.unusable(folder, Ok::<_, io::Error>(free));
        let (sender, messages) = mpsc::channel(QUEUE);
        let (pause, paused) = watch::channel(full);
        let closing = CancellationToken::new();
        let writer = Writer { messages, series, space_limit, paused: pause, closing: closing.clone() };
        let writing = Arc::new(Mutex::new(Some(tokio::spawn(writer.run()))));
        Ok(Self { folder: folder.as_path().into(), messages: sender, paused, closing, writing })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Why crawls pause, in one sentence; `None` if pages can be stored.
    pub fn paused(&self) -> Option<String> {
        if self.messages.is_closed() {
            return Some(GONE.to_owned());
        }
        self.paused.borrow().as_ref().map(|reason| reason.replace(['\n', '\r'], " "))
    }

    /// Writes the waiting exchanges (requests with their responses), and closes the WARC file. Call
    /// this function after all crawls have ended, because later exchanges are refused.
    pub async fn close(&self) {
        self.closing.cancel();
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(writing) = writing else { return };
        if tokio::time::timeout(CLOSE_TIMEOUT, writing).await.is_err() {
            tracing::error!("some pages were not stored in time; they will be fetched again");
        }
    }
}

impl Store {
    /// Makes a recorder for the crawl of this site and task.
    pub fn recorder(&self, site: &str, task_id: Option<i64>) -> Recorder {
        let of = Arc::new(CrawlIdentity { site: site.to_owned(), task_id });
        Recorder { store: self.clone(), of, ended: Arc::default() }
    }
}

#[derive(Debug, Clone)]
pub struct Recorder {
    store: Store,
    of: Arc<CrawlIdentity>,
    /// Exchanges (requests with their responses) that have ended but have not been passed to the
    /// writer yet.
    ended: Arc<EndedExchanges>,
}

impl Recorder {
    /// Starts to record a response, before its body arrives.
    pub fn begin(&self, answered: AnsweredRequest) -> Recording {
        let body = Body::new(Arc::clone(&self.store.folder));
        Recording::new(Arc::clone(&self.of), answered, body, Arc::clone(&self.ended))
    }

    /// Passes completed exchanges to the writer, and waits until pages can be stored. The crawl
    /// then sends its next request.
    pub async fn ready(&self) {
        if self.hand_over().await.is_err() {
            // Ignore the error here, because `stored` and `synced` report it.
            return;
        }
        let mut paused = self.store.paused.clone();
        // An error means that the writer has ended, so there is nothing to wait for.
        let _writer_gone = paused.wait_for(Option::is_none).await;
    }

    /// Waits until all ended exchanges are written to the WARC file, so that they survive the end
    /// of this process.
    pub async fn stored(&self) -> io::Result<()> {
        self.await_reply(Message::Stored).await
    }

    /// Waits until all ended exchanges are synced, so that they survive a crash of the machine.
    pub async fn synced(&self) -> io::Result<()> {
        self.await_reply(Message::Synced).await
    }

    async fn await_reply(&self, question: fn(oneshot::Sender<()>) -> Message) -> io::Result<()> {
        self.hand_over().await?;
        let (sender, reply) = oneshot::channel();
        self.store.messages.send(question(sender)).await.map_err(closed)?;
        reply.await.map_err(closed)
    }

    /// Passes the ended exchanges to the writer. Cancel-safe: no exchange is lost.
    async fn hand_over(&self) -> io::Result<()> {
        let is_empty = || self.ended.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
        while !is_empty() {
            let place = self.store.messages.reserve().await.map_err(closed)?;
            if let Some(exchange) = self.ended.lock().unwrap_or_else(PoisonError::into_inner).pop_front() {
                place.send(Message::Exchange(exchange));
            }
        }
        Ok(())
    }
}

fn closed<E>(_: E) -> io::Error {
    io::Error::other(GONE)
}

/// Maximum number of messages to handle at once.
const BATCH: usize = 32;
/// Time to wait for further messages if no crawl awaits a reply. A thread is then woken once for
/// many pages instead of once per page.
const LINGER: Duration = Duration::from_millis(50);
/// Interval at which files are synced and the free space is checked. This interval equals the
/// interval at which crawls write their state.
const SYNC_EVERY: Duration = Duration::from_secs(1);
/// Delay before the next attempt after a failed write.
const RETRY: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(1) };
/// Maximum number of attempts to write the last exchanges when the agent stops. Pages that stay
/// unwritten are fetched again.
const LAST_ATTEMPTS: u32 = 3;

#[derive(Debug)]
enum Message {
    Exchange(Box<Exchange>),
    /// Asks for a reply once all messages before this one have been written to the file.
    Stored(oneshot::Sender<()>),
    /// Asks for a reply once all messages before this one have been synced.
    Synced(oneshot::Sender<()>),
}

impl Message {
    fn exchange(&self) -> Option<&Exchange> {
        match self {
            Self::Exchange(exchange) => Some(exchange),
            Self::Stored(_) | Self::Synced(_) => None,
        }
    }

    /// Whether the message can be dropped without disk I/O.
    fn is_in_memory(&self) -> bool {
        matches!(self, Self::Exchange(exchange) if exchange.body.is_in_memory())
    }
}

struct Writer {
    messages: mpsc::Receiver<Message>,
    series: VolumeSeries,
    pub(super) space_limit: FreeSpaceLimit,
    pub(super) paused: watch::Sender<Option<String>>,
    closing: CancellationToken,
}

impl Writer {
    /// Writes until the store is closed or all senders are dropped.
    pub(super) async fn run(self) {
        let Self { mut messages, mut series, mut space_limit, paused, closing } = self;
        let mut batch = VecDeque::new();
        let mut ticks = interval(SYNC_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut full, mut failures) = (None, 0);
        loop {
            let mut is_tick = false;
            if batch.is_empty() {
                tokio::select! {
                    message = messages.recv() => match message {
                        Some(message) => batch.push_back(message),
                        None => break,
                    },
                    () = closing.cancelled(), if !messages.is_closed() => messages.close(),
                    _ = ticks.tick() => is_tick = true,
                }
                gather(&mut messages, &mut batch).await;
            }
            let step = move || {
                let mut stored = Vec::new();
                let worked = work(&mut series, &mut batch, &mut stored);
                let worked = worked.and_then(|()| if is_tick { series.sync() } else { Ok(()) });
                let free = is_tick.then(|| free_bytes(&series.folder));
                (series, batch, stored, worked, free)
            };
            let (stored, done, free);
            (series, batch, stored, done, free) = match tokio::task::spawn_blocking(step).await {
                Ok(worked) => worked,
                Err(error) => {
                    return tracing::error!(%error, "the writer crashed; no page is stored until the agent restarts");
                }
            };
            // Free the exchanges here instead of on the blocking thread. If a thread frees memory
            // that another thread allocated, both threads need the allocator's lock.
            drop(stored);
            failures = if done.is_ok() { 0 } else { failures + 1 };
            full = match free {
                Some(free) => space_limit.unusable(&series.folder, free),
                None => full,
            };
            let folder = series.folder.display();
            let failure = done.err().map(|error| format!("pages cannot be stored in {folder}: {error}"));
            set_paused(&paused, failure.or_else(|| full.clone()));
            if failures == 0 {
                continue;
            }
            if closing.is_cancelled() && failures >= LAST_ATTEMPTS {
                tracing::error!(
                    exchanges = batch.len(),
                    "the agent stops before all pages are stored; they will be fetched again"
                );
                break;
            }
            sleep(RETRY).await;
        }
        if let Err(error) = blocking(move || series.close()).await {
            tracing::error!(%error, "a WARC file stays open; the next start closes it");
        }
    }
}

/// Handles the messages in order, and removes them from `batch`. Stored exchanges whose bodies are
/// in memory are moved to `done`, so that the caller can drop them on another thread. Blocks the
/// thread.
fn work(series: &mut VolumeSeries, batch: &mut VecDeque<Message>, done: &mut Vec<Message>) -> io::Result<()> {
    while !batch.is_empty() {
        let stored = series.store(batch.iter().map_while(Message::exchange))?;
        done.extend(batch.drain(..stored).filter(Message::is_in_memory));
        if let Some(Message::Synced(_)) = batch.front() {
            series.sync()?;
        }
        if let Some(Message::Stored(sender) | Message::Synced(sender)) =
            batch.pop_front_if(|message| !matches!(message, Message::Exchange(_)))
        {
            // Errors are ignored, because the crawl may have stopped waiting.
            let _unheard = sender.send(());
        }
    }
    Ok(())
}

/// Adds further waiting messages to `batch`. If no crawl awaits a reply, waits up to [`LINGER`] for
/// more.
async fn gather(messages: &mut mpsc::Receiver<Message>, batch: &mut VecDeque<Message>) {
    let mut lingered = pin!(sleep(LINGER));
    while !batch.is_empty() && batch.len() < BATCH {
        let nobody_waits = batch.iter().all(|message| matches!(message, Message::Exchange(_)));
        let more = if nobody_waits {
            tokio::select! {
                biased;
                more = messages.recv() => more,
                () = &mut lingered => None,
            }
        } else {
            messages.try_recv().ok()
        };
        match more {
            Some(message) => batch.push_back(message),
            None => break,
        }
    }
}

/// Sets whether crawls pause, and logs each change.
fn set_paused(paused: &watch::Sender<Option<String>>, reason: Option<String>) {
    let changed = reason.is_some() != paused.borrow().is_some();
    match &reason {
        Some(reason) if changed => tracing::error!(reason, "crawls pause"),
        None if changed => tracing::info!("crawls resume: pages can be stored again"),
        _ => {}
    }
    paused.send_if_modified(|current| {
        let differs = *current != reason;
        *current = reason;
        differs
    });
}
