//! One request and its response, from the response's head until both are stored.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::time::Instant;

use super::body::Body;
use super::digest::Digest;

/// Why a body is incomplete, in WARC's terms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncated {
    /// It exceeds the size limit.
    Length,
    /// It exceeded the time limit.
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

/// The crawl to which an exchange belongs.
#[derive(Debug)]
pub(super) struct CrawlIdentity {
    pub(super) site: String,
    pub(super) task_id: Option<i64>,
}

/// An answered request, and the head of the response.
#[derive(Debug)]
pub struct AnsweredRequest {
    pub url: String,
    /// When the response's head arrived.
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

/// Exchanges that have ended but are not handed over yet; never held across an await.
pub(super) type EndedExchanges = Mutex<VecDeque<Box<Exchange>>>;

/// The state of a recording.
#[derive(Debug, Clone, Copy)]
enum RecordingState {
    /// Waiting for the next piece; the crawl's deadline is at that moment.
    Waiting(Instant),
    /// The crawl requests no more.
    Idle,
    /// No more will come, for this reason; `None` at the body's end.
    Over(Option<Truncated>),
}

/// Receives a response's body. It ends when it is dropped, so that no way out of a crawl can lose
/// it.
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

    /// Sets the link depth from the start page.
    pub fn found_at(&mut self, depth: u32) {
        if let Some(exchange) = &mut self.exchange {
            exchange.depth = Some(depth);
        }
    }

    /// The crawl waits for the next piece; its deadline is `until`.
    pub const fn wait(&mut self, until: Instant) {
        self.state = RecordingState::Waiting(until);
    }

    /// Takes an encoded piece of the body. If cancelled, it has still taken all of it.
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

    /// No more will come; `None` means the body's regular end.
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
