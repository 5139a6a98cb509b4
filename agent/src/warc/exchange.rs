//! One request and its answer, from the answer's head until both are stored.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::time::Instant;

use super::body::Body;
use super::digest::Digest;

/// Why a body is not whole, as WARC says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Truncated {
    /// It is longer than what is taken of one.
    Length,
    /// It took too long.
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

/// Of which crawl something is.
#[derive(Debug)]
pub(super) struct Crawled {
    pub(super) site: String,
    pub(super) task_id: Option<i64>,
}

/// A request that was answered, and the head of the answer.
#[derive(Debug)]
pub struct Answered {
    pub url: String,
    /// When the answer's head was there.
    pub at: SystemTime,
    /// Who answered, where that is known.
    pub address: Option<IpAddr>,
    /// The request, as HTTP/1.1 writes it.
    pub request: Vec<u8>,
    /// The answer's head, as HTTP/1.1 writes it, with the empty line that ends it.
    pub head: Vec<u8>,
    pub status: u16,
    pub content_type: Option<String>,
}

#[derive(Debug)]
pub(super) struct Exchange {
    pub(super) of: Arc<Crawled>,
    pub(super) answered: Answered,
    pub(super) depth: Option<u32>,
    pub(super) body: Body,
    pub(super) block: Digest,
    pub(super) payload: Digest,
    pub(super) decoded: u64,
    pub(super) truncated: Option<Truncated>,
}

/// Exchanges that have ended and are not handed over yet; never held across an await.
pub(super) type Ended = Mutex<VecDeque<Box<Exchange>>>;

/// How a recording stands.
#[derive(Debug, Clone, Copy)]
enum Stand {
    /// The next piece is waited for; the crawl's time is over at that moment.
    Waiting(Instant),
    /// Nobody asks for more.
    Idle,
    /// Nothing more will come, because of this; `None` at the body's end.
    Over(Option<Truncated>),
}

/// Takes an answer's body. It ends when it is dropped, wherever that is: no way out of a crawl forgets it.
#[derive(Debug)]
pub struct Recording {
    exchange: Option<Box<Exchange>>,
    ended: Arc<Ended>,
    stand: Stand,
}

impl Recording {
    pub(super) fn new(of: Arc<Crawled>, answered: Answered, body: Body, ended: Arc<Ended>) -> Self {
        let mut block = Digest::default();
        block.update(&answered.head);
        let (payload, decoded, truncated, depth) = (Digest::default(), 0, None, None);
        let exchange = Exchange { of, answered, depth, body, block, payload, decoded, truncated };
        Self { exchange: Some(Box::new(exchange)), ended, stand: Stand::Idle }
    }

    /// Says how many links away from the start page it was found.
    pub fn found_at(&mut self, depth: u32) {
        if let Some(exchange) = &mut self.exchange {
            exchange.depth = Some(depth);
        }
    }

    /// The next piece is waited for, by a crawl whose time is over at that moment.
    pub const fn wait(&mut self, until: Instant) {
        self.stand = Stand::Waiting(until);
    }

    /// Takes a piece of the body, as it was sent. Dropped half way, it has taken all of it.
    pub async fn push(&mut self, piece: &[u8]) {
        if let Some(exchange) = &mut self.exchange {
            exchange.block.update(piece);
            exchange.payload.update(piece);
            exchange.body.push(piece).await;
        }
        self.stand = Stand::Idle;
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

    /// Nothing more will come: `None` where that is the body's end.
    pub const fn end(&mut self, truncated: Option<Truncated>) {
        self.stand = Stand::Over(truncated);
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(mut exchange) = self.exchange.take() {
            exchange.truncated = match self.stand {
                Stand::Waiting(until) if Instant::now() >= until => Some(Truncated::Time),
                Stand::Waiting(_) => Some(Truncated::Unspecified),
                Stand::Idle => Some(Truncated::Length),
                Stand::Over(truncated) => truncated,
            };
            self.ended.lock().unwrap_or_else(PoisonError::into_inner).push_back(exchange);
        }
    }
}
