//! Stores fetched pages as WARC/1.1 (ISO 28500): every response and its request, each a gzip
//! member, and a JSON line for each response.
//!
//! One [`Store`] serves all crawls of an agent. Each crawl has a [`Recorder`], which takes
//! responses while they arrive (`exchange`, `body`) and hands them over. One task (`writer`) has
//! them written (`volume`, `member`, `fields`, `digest`) to one file after another (`names`,
//! `folder`). Nothing that blocks on the disk runs on the runtime's threads, and every queue is
//! bounded.
//!
//! **Every page that counts as visited is stored**: a crawl's log is written only after
//! [`Recorder::stored`] has returned. A page lost in a crash was fetched but not counted; it is
//! fetched and stored again.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::StoreConfig;
use crate::disk::folder::FolderError;
use crate::disk::free_space::{FreeSpaceLimit, free_bytes};
use body::Body;
pub use exchange::{AnsweredRequest, Recording, Truncated};
use exchange::{CrawlIdentity, EndedExchanges};
pub use volume::ResponseLine;
use writer::{Message, VolumeSeries, Writer};

mod body;
mod digest;
mod exchange;
mod fields;
mod folder;
mod member;
mod names;
pub mod read;
#[cfg(test)]
mod tests;
mod volume;
mod writer;

/// Maximum responses waiting to be written, of at most 256 KiB in memory each; a crawl with another
/// one waits.
const QUEUE: usize = 32;
/// Time limit for the last of them when the agent stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The error once the writer has ended.
const GONE: &str = "pages are no longer stored";

#[derive(Debug, Clone)]
pub struct Store {
    folder: Arc<Path>,
    messages: mpsc::Sender<Message>,
    paused: watch::Receiver<Option<String>>,
    closing: CancellationToken,
    writing: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Store {
    /// Opens the folder, creates it if missing, and closes files that an earlier process left open.
    /// `name` is part of the files' names.
    pub fn open(config: &StoreConfig, name: &str) -> Result<Self, FolderError> {
        let StoreConfig { folder, max_file_bytes, min_free_bytes } = config;
        let lock = folder::take(folder)?;
        let series = VolumeSeries::new(folder.clone(), lock, name.to_owned(), *max_file_bytes);
        let mut space_limit = FreeSpaceLimit::new(*min_free_bytes);
        let free = free_bytes(folder).map_err(|source| folder::FOLDER.unusable(folder, source))?;
        let full = space_limit.full(free).map(|full| format!("disk full: {} has {full}", folder.display()));
        let (sender, messages) = mpsc::channel(QUEUE);
        let (pause, paused) = watch::channel(full);
        let closing = CancellationToken::new();
        let writer = Writer { messages, series, space_limit, paused: pause, closing: closing.clone() };
        let writing = Arc::new(Mutex::new(Some(tokio::spawn(writer.run()))));
        Ok(Self { folder: folder.as_path().into(), messages: sender, paused, closing, writing })
    }

    /// The recorder of one crawl, of this site and for this task.
    pub fn recorder(&self, site: &str, task_id: Option<i64>) -> Recorder {
        let of = Arc::new(CrawlIdentity { site: site.to_owned(), task_id });
        Recorder { store: self.clone(), of, ended: Arc::default() }
    }

    /// Why crawls pause, in one sentence; `None` while pages can be stored.
    pub fn paused(&self) -> Option<String> {
        if self.messages.is_closed() {
            return Some(GONE.to_owned());
        }
        self.paused.borrow().as_ref().map(|reason| reason.replace(['\n', '\r'], " "))
    }

    /// Writes the exchanges handed over, and closes the file. Crawls must have ended: later
    /// exchanges are refused.
    pub async fn close(&self) {
        self.closing.cancel();
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(writing) = writing else { return };
        if tokio::time::timeout(CLOSE_TIMEOUT, writing).await.is_err() {
            tracing::error!("some pages were not stored in time; they will be fetched again");
        }
    }
}

#[derive(Debug, Clone)]
pub struct Recorder {
    store: Store,
    of: Arc<CrawlIdentity>,
    /// Exchanges that have ended but are not handed over yet.
    ended: Arc<EndedExchanges>,
}

impl Recorder {
    /// Starts recording a response, whose body is still to come.
    pub fn begin(&self, answered: AnsweredRequest) -> Recording {
        let body = Body::new(Arc::clone(&self.store.folder));
        Recording::new(Arc::clone(&self.of), answered, body, Arc::clone(&self.ended))
    }

    /// Returns when a request may be sent: ended exchanges are handed over, and pages can be
    /// stored.
    pub async fn ready(&self) {
        if self.hand_over().await.is_err() {
            // `stored` and `synced` report the error.
            return;
        }
        let mut paused = self.store.paused.clone();
        // Without a writer nothing can pause the crawl.
        let _writer_gone = paused.wait_for(Option::is_none).await;
    }

    /// Returns when all ended exchanges are passed to the system: they survive the end of this
    /// process.
    pub async fn stored(&self) -> io::Result<()> {
        self.await_reply(Message::Stored).await
    }

    /// Returns when all ended exchanges are on the disk: they survive a crash of the machine.
    pub async fn synced(&self) -> io::Result<()> {
        self.await_reply(Message::Synced).await
    }

    async fn await_reply(&self, question: fn(oneshot::Sender<()>) -> Message) -> io::Result<()> {
        self.hand_over().await?;
        let (sender, reply) = oneshot::channel();
        self.store.messages.send(question(sender)).await.map_err(closed)?;
        reply.await.map_err(closed)
    }

    /// Hands over the ended exchanges. Loses nothing if cancelled.
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
