//! Records the body of a response while it arrives, and decides why an incomplete body ended.

use std::sync::{Arc, PoisonError};

use tokio::time::Instant;

use super::body::Body;
use super::digest::Digest;
use super::exchange::{AnsweredRequest, CrawlIdentity, EndedExchanges, Exchange, Truncated};

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
