//! Records the pages of one crawl, and lets the crawl wait until they are stored, and while pages
//! cannot be stored.

use std::io;
use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;

use super::body::Body;
use super::exchange::{AnsweredRequest, CrawlIdentity, EndedExchanges};
use super::recording::Recording;
use super::store::{GONE, Store};
use super::writer::Message;

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
