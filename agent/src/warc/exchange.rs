//! An exchange: a request and its response. An exchange is kept from the arrival of the response's
//! head until the writer has stored the exchange.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use super::answered_request::AnsweredRequest;
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
