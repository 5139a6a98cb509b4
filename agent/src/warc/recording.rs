//! Records a request and its response (an exchange) while the body arrives, decides why an
//! incomplete body ended, and holds the body in memory or in an unnamed file, with its digest,
//! until it is stored.
//!
//! The library has already parsed the response. Therefore header names are in lower case, and
//! fields with the same name are adjacent. The transfer encoding is removed together with its
//! header. Values and the body are unchanged.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use data_encoding::BASE32;
use hyper::ext::ReasonPhrase;
use reqwest::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, TRANSFER_ENCODING};
use reqwest::{Response, Url, Version};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use url::Position;

use crate::disk::folder::blocking;
use crate::machine::clock;

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
            request: http1_request(sent, url),
            head: http1_head(response),
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

/// Initial buffer size for a head: twice what most heads need.
const ROOM: usize = 512;

/// A request with the headers `sent`.
fn http1_request(sent: &HeaderMap, url: &Url) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ROOM);
    let target = url[Position::BeforePath..Position::AfterQuery].as_bytes();
    [b"GET ".as_slice(), target, b" HTTP/1.1\r\n"].iter().for_each(|part| bytes.extend_from_slice(part));
    // This range of the URL omits the default port, and the Host header must omit it too.
    header(&mut bytes, &HOST, url[Position::BeforeHost..Position::AfterPort].as_bytes());
    sent.iter().for_each(|(name, value)| header(&mut bytes, name, value.as_bytes()));
    bytes.extend(b"\r\n");
    bytes
}

/// The head of a response, including the final empty line.
fn http1_head(response: &Response) -> Vec<u8> {
    let version: &[u8] = if response.version() == Version::HTTP_10 { b"1.0" } else { b"1.1" };
    let mut bytes = Vec::with_capacity(ROOM);
    let status = response.status();
    [b"HTTP/".as_slice(), version, b" ", status.as_str().as_bytes(), b" "]
        .iter()
        .for_each(|part| bytes.extend_from_slice(part));
    let phrase = response.extensions().get::<ReasonPhrase>().map(ReasonPhrase::as_bytes);
    let reason = || response.status().canonical_reason().unwrap_or_default().as_bytes();
    bytes.extend(phrase.unwrap_or_else(reason));
    bytes.extend(b"\r\n");
    let stored = response.headers().iter().filter(|(name, _)| *name != TRANSFER_ENCODING);
    stored.for_each(|(name, value)| header(&mut bytes, name, value.as_bytes()));
    bytes.extend(b"\r\n");
    bytes
}

fn header(bytes: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    [name.as_str().as_bytes(), b": ", value, b"\r\n"].iter().for_each(|part| bytes.extend_from_slice(part));
}

/// Maximum bytes of one body in memory. A longer body is moved to a file. So the bodies of fifty
/// crawls take at most 12.5 MiB of memory.
const IN_MEMORY: usize = 256 << 10;
/// Number of bytes per read from the file.
const READ: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Body {
    folder: Arc<Path>,
    /// The file with the first part of the body; created when it is needed.
    file: Option<Arc<File>>,
    in_file: u64,
    /// Bytes that are being written to the file, after the first `in_file` bytes.
    moving: Option<Arc<Vec<u8>>>,
    memory: Vec<u8>,
    /// Length of `memory` at which its bytes are moved to the file.
    most: usize,
}

impl Body {
    /// An empty body. If the body grows too large for memory, its file is created in this folder.
    pub(super) const fn new(folder: Arc<Path>) -> Self {
        Self { folder, file: None, in_file: 0, moving: None, memory: Vec::new(), most: IN_MEMORY }
    }

    pub(super) fn len(&self) -> u64 {
        let moving = self.moving.as_ref().map_or(0, |moving| moving.len());
        self.in_file + u64::try_from(moving + self.memory.len()).expect("a length")
    }

    /// Adds a piece, even if the future is dropped before it completes. While writes to the file
    /// fail, the body grows in memory, up to the maximum size of a page.
    pub(super) async fn push(&mut self, piece: &[u8]) {
        self.memory.extend_from_slice(piece);
        if self.memory.len() < self.most || self.moving.is_some() {
            return;
        }
        let moving = Arc::new(std::mem::take(&mut self.memory));
        self.moving = Some(Arc::clone(&moving));
        let (folder, file, at) = (Arc::clone(&self.folder), self.file.clone(), self.in_file);
        let write = move || {
            let file = match file {
                Some(file) => file,
                None => Arc::new(tempfile::tempfile_in(folder)?),
            };
            file.write_all_at(&moving, at)?;
            io::Result::Ok(file)
        };
        let written = blocking(write).await;
        let Some(moved) = self.moving.take() else { return };
        match written {
            Ok(file) => {
                self.file = Some(file);
                self.in_file += u64::try_from(moved.len()).expect("a length");
                self.most = IN_MEMORY;
            }
            Err(error) => {
                tracing::warn!(%error,
                    "cannot write a page to a temporary file; it stays in memory until it is stored");
                let rest = std::mem::replace(&mut self.memory, Arc::unwrap_or_clone(moved));
                self.memory.extend(rest);
                self.most = self.memory.len() + IN_MEMORY;
            }
        }
    }

    pub(super) const fn is_in_memory(&self) -> bool {
        self.file.is_none()
    }

    /// Passes the whole body to `take`, in order. Blocks the thread.
    pub(super) fn read(&self, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        if let Some(file) = &self.file {
            let mut buffer = vec![0; READ];
            let mut at = 0;
            while at < self.in_file {
                let left = usize::try_from(self.in_file - at).unwrap_or(READ).min(READ);
                file.read_exact_at(&mut buffer[..left], at)?;
                take(&buffer[..left])?;
                at += u64::try_from(left).expect("a length");
            }
        }
        self.moving.iter().try_for_each(|moving| take(moving))?;
        take(&self.memory)
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.moving.as_ref().map_or(0, |moving| moving.len()) + self.memory.capacity()
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Digest(Sha256);

impl Digest {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest in the form used in WARC fields: the algorithm, and the value in base 32 (RFC
    /// 4648).
    pub(super) fn label(self) -> String {
        format!("sha256:{}", BASE32.encode(&self.0.finalize()))
    }
}

pub(super) fn digest_of(bytes: &[u8]) -> String {
    let mut digest = Digest::default();
    digest.update(bytes);
    digest.label()
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderValue, USER_AGENT};

    use super::*;

    fn head_of(response: hyper::http::response::Builder) -> Vec<u8> {
        http1_head(&Response::from(response.body("the body").unwrap()))
    }

    #[test]
    fn a_head_is_stored_in_http_1_form_for_every_version() {
        let answer = || hyper::Response::builder().status(200);
        assert_eq!(head_of(answer().version(Version::HTTP_2)), b"HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!(head_of(answer().version(Version::HTTP_10)), b"HTTP/1.0 200 OK\r\n\r\n");
        let phrase = answer().status(299).extension(ReasonPhrase::from_static(b"Quite good"));
        assert_eq!(head_of(phrase), b"HTTP/1.1 299 Quite good\r\n\r\n");
    }

    #[test]
    fn values_are_stored_as_sent_without_the_transfer_encoding() {
        let odd = HeaderValue::from_bytes(b"caf\xe9\t;").unwrap();
        let answer = hyper::Response::builder()
            .header("X-Odd", odd)
            .header("Transfer-Encoding", "chunked")
            .header("Content-Encoding", "gzip")
            .header("X-Odd", "twice");
        let expected = b"HTTP/1.1 200 OK\r\nx-odd: caf\xe9\t;\r\nx-odd: twice\r\ncontent-encoding: gzip\r\n\r\n";
        assert_eq!(head_of(answer), expected);
    }

    #[test]
    fn a_stored_request_holds_the_host_and_the_full_path() {
        let sent = HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static("a"))]);
        for (url, line, host) in [
            ("http://a.cn", "/", "a.cn"),
            ("https://a.cn:443/x?y=1#z", "/x?y=1", "a.cn"),
            ("http://[::1]:81/a b\r\nX: y", "/a%20bX:%20y", "[::1]:81"),
        ] {
            let request = String::from_utf8(http1_request(&sent, &url.parse().unwrap())).unwrap();
            assert_eq!(request, format!("GET {line} HTTP/1.1\r\nhost: {host}\r\nuser-agent: a\r\n\r\n"));
        }
    }

    fn read(body: &Body) -> Vec<u8> {
        let mut bytes = Vec::new();
        body.read(|piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })
        .unwrap();
        bytes
    }

    #[tokio::test]
    async fn a_body_stays_whole_while_its_file_cannot_be_created() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("pages");
        let mut body = Body::new(pages.as_path().into());
        let all: Vec<u8> = (0..20 * IN_MEMORY).map(|number| number.to_le_bytes()[1]).collect();
        for (number, piece) in all.chunks(IN_MEMORY / 4).enumerate() {
            if number == 30 {
                assert!(body.in_file == 0 && body.held() >= 30 * IN_MEMORY / 4);
                std::fs::create_dir(&pages).unwrap();
            }
            body.push(piece).await;
        }
        assert!(body.in_file > 0 && body.held() <= 2 * IN_MEMORY, "{} bytes are held", body.held());
        assert_eq!(body.len(), u64::try_from(all.len()).unwrap());
        assert!(read(&body) == all);
    }

    #[test]
    fn a_label_is_the_algorithm_and_base_32() {
        assert_eq!(digest_of(b""), "sha256:4OYMIQUY7QOBJGX36TEJS35ZEQT24QPEMSNZGTFESWMRW6CSXBKQ====");
    }
}
