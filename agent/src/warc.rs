//! Stores fetched pages as WARC/1.1 (ISO 28500). Every response and every request is a gzip member
//! of its own. Each WARC file has an index (`.jsonl`) with a line of JSON for each response.
//!
//! All crawls of an agent share one [`Store`]. Each crawl has a [`Recorder`], which records
//! responses while they arrive (`exchange`, `recording`, `http1_form`, `body`) and sends them to the
//! `writer`. The writer appends responses (`volume`, `records`, `member`, `fields`, `digest`,
//! `index_line`) to one file after another (`names`, `folder`). Blocking disk operations run on tokio's threads for
//! blocking tasks, and the length of every queue is limited.
//!
//! **Every page that counts as visited is stored**: a crawl logs a page as visited only after
//! [`Recorder::stored`] has returned. If a crash loses a page, the page is fetched again.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::config::StoreConfig;
use crate::disk::folder::FolderError;
use crate::machine::free_space::{FreeSpaceLimit, free_bytes};
use body::Body;
pub use exchange::{AnsweredRequest, Truncated};
use exchange::{CrawlIdentity, EndedExchanges};
pub use index_line::ResponseLine;
pub use recording::Recording;
use rotation::VolumeSeries;
use writer::{Message, Writer};

mod body;
mod digest;
mod exchange;
mod fields;
mod folder;
mod http1_form;
mod index_line;
mod member;
mod names;
pub mod read;
mod recording;
mod records;
mod rotation;
#[cfg(test)]
mod tests;
mod volume;
mod writer;

/// Maximum number of responses that wait for the writer, each with at most 256 KiB in memory.
/// Crawls wait while the queue is full.
const QUEUE: usize = 32;
/// Time limit for writing the last responses when the agent stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// The error message once the writer has ended.
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

    /// Makes a recorder for the crawl of this site and task.
    pub fn recorder(&self, site: &str, task_id: Option<i64>) -> Recorder {
        let of = Arc::new(CrawlIdentity { site: site.to_owned(), task_id });
        Recorder { store: self.clone(), of, ended: Arc::default() }
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
