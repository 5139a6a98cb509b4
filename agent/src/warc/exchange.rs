//! An exchange: a request and its response. An exchange is kept from the arrival of the response's
//! head until the writer has stored the exchange.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::{Response, Url};

use super::body::Body;
use super::digest::Digest;
use super::http1_form;
use crate::machine::clock;

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

impl AnsweredRequest {
    /// The stored form of a request with the headers `sent`, and of the head of its response.
    pub(crate) fn new(sent: &HeaderMap, url: &Url, response: &Response) -> Self {
        let content_type = response.headers().get(CONTENT_TYPE);
        Self {
            url: url.as_str().to_owned(),
            at: clock::wall(),
            address: response.remote_addr().map(|address| address.ip()),
            request: http1_form::request(sent, url),
            head: http1_form::head(response),
            status: response.status().as_u16(),
            content_type: content_type.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
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
