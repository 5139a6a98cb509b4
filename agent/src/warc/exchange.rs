//! An exchange: a request and its response. An exchange is kept from the arrival of the response's
//! head until the writer has stored the exchange.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::time::Instant;

use super::body::Body;
use super::digest::Digest;

/// Why a body is incomplete. Each reason is a value of `WARC-Truncated`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncated {
    /// The body exceeds the size limit.
    Length,
    /// The body exceeded the time limit.
    Time,
    /// The connection broke.
    Disconnect,
    /// The crawl was stopped.
    Unspecified,
}

impl Truncated {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Time => "time",
            Self::Disconnect => "disconnect",
            Self::Unspecified => "unspecified",
        }
    }
}

#[derive(Debug)]
pub(super) struct CrawlIdentity {
    pub(super) site: String,
    pub(super) task_id: Option<i64>,
}

/// A request, and the head of its response.
#[derive(Debug)]
pub struct AnsweredRequest {
    pub url: String,
    /// The time at which the response's head arrived.
    pub at: SystemTime,
    /// The server's address, if known.
    pub address: Option<IpAddr>,
    /// The request in HTTP/1.1 form.
    pub request: Vec<u8>,
    /// The response's head in HTTP/1.1 form, including the final empty line.
    pub head: Vec<u8>,
    pub status: u16,
    pub content_type: Option<String>,
}

#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) of: Arc<CrawlIdentity>,
    pub(super) answered: AnsweredRequest,
    pub(super) depth: Option<u32>,
    pub(super) body: Body,
    pub(super) block: Digest,
    pub(super) payload: Digest,
    pub(super) decoded: u64,
    pub(super) truncated: Option<Truncated>,
}

/// Exchanges that have ended but have not been passed to the writer yet. The lock is never held
/// across an await.
pub(super) type EndedExchanges = Mutex<VecDeque<Box<Exchange>>>;

#[derive(Debug, Clone, Copy)]
enum RecordingState {
    /// The crawl is waiting for the next piece, at most until this deadline.
    Waiting(Instant),
    /// The crawl is not waiting for a piece.
    Idle,
    /// The body has ended, for this reason; `None` if it is complete.
    Over(Option<Truncated>),
}

/// Records a response's body. Dropping the recording ends the exchange, so no exchange is lost if
/// a crawl is cancelled.
#[derive(Debug)]
pub struct Recording {
    exchange: Option<Box<Exchange>>,
    ended: Arc<EndedExchanges>,
    state: RecordingState,
}

impl Recording {
    pub(super) fn new(
        of: Arc<CrawlIdentity>,
        answered: AnsweredRequest,
        body: Body,
        ended: Arc<EndedExchanges>,
    ) -> Self {
        let mut block = Digest::default();
        block.update(&answered.head);
        let (payload, decoded, truncated, depth) = (Digest::default(), 0, None, None);
        let exchange = Exchange { of, answered, depth, body, block, payload, decoded, truncated };
        Self { exchange: Some(Box::new(exchange)), ended, state: RecordingState::Idle }
    }

    /// Sets the number of links between the start page and this page.
    pub fn found_at(&mut self, depth: u32) {
        if let Some(exchange) = &mut self.exchange {
            exchange.depth = Some(depth);
        }
    }

    /// Records that the crawl is waiting for the next piece, at most until its deadline `until`.
    pub const fn wait(&mut self, until: Instant) {
        self.state = RecordingState::Waiting(until);
    }

    /// Adds an encoded piece of the body, even if the future is dropped before it completes.
    pub async fn push(&mut self, piece: &[u8]) {
        if let Some(exchange) = &mut self.exchange {
            exchange.block.update(piece);
            exchange.payload.update(piece);
            exchange.body.push(piece).await;
        }
        self.state = RecordingState::Idle;
    }

    pub fn count(&mut self, bytes: usize) {
        if let Some(exchange) = &mut self.exchange {
            exchange.decoded += u64::try_from(bytes).unwrap_or(u64::MAX);
        }
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.exchange.as_ref().map_or(0, |exchange| exchange.body.held())
    }

    /// Records that no further piece will come. `None` means that the body is complete.
    pub const fn end(&mut self, truncated: Option<Truncated>) {
        self.state = RecordingState::Over(truncated);
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(mut exchange) = self.exchange.take() {
            exchange.truncated = match self.state {
                RecordingState::Waiting(until) if Instant::now() >= until => Some(Truncated::Time),
                RecordingState::Waiting(_) => Some(Truncated::Unspecified),
                RecordingState::Idle => Some(Truncated::Length),
                RecordingState::Over(truncated) => truncated,
            };
            self.ended.lock().unwrap_or_else(PoisonError::into_inner).push_back(exchange);
        }
    }
}
