//! The store of fetched pages, which all crawls of an agent share: opens its folder, starts the
//! writer, and stops it when the agent stops.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::folder;
use super::rotation::VolumeSeries;
use super::writer::{Message, Writer};
use crate::config::StoreConfig;
use crate::disk::folder::FolderError;
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
    pub(super) messages: mpsc::Sender<Message>,
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
