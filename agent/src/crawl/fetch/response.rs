//! Checks the header of a response when it arrives. Receives the body within limits of time and
//! rate, and decodes it.

use std::ops::ControlFlow;
use std::time::Duration;

use hyper::body::Bytes;
use landfall_proto::error_causes::innermost;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout_at};

use super::content_encoding::{Coding, DecodeError, Decoder};
use super::failure_cause::{FetchError, is_too_large, too_slow_at};
use crate::crawl::politeness::pauses;
use crate::metrics::METRICS;
use crate::warc::{Recording, Truncated};

/// Maximum bytes of an unwanted body to read in order to keep the connection. Most bodies of 404
/// responses are smaller than this maximum.
const MAX_UNWANTED_BYTES: u64 = 64 << 10;
/// Minimum time limit for reading an unwanted body. The limit is twice the response's time to first
/// byte if that is longer. A new handshake takes about twice the time to first byte, so reading for
/// longer would cost more than a new connection.
const MIN_UNWANTED_TIME: Duration = Duration::from_secs(1);

/// Memory budget in [`UNIT`]s for the large decoding windows of the whole process. A brotli or zstd
/// body that decodes to more than a megabyte waits until it gets permits for its whole window.
pub(in crate::crawl) static WINDOWS: Semaphore = Semaphore::const_new(64);
/// Number of bytes of memory per permit.
const UNIT: usize = 1 << 20;

pub(in crate::crawl) struct CrawlResponse {
    response: reqwest::Response,
    timeouts: Timeouts,
    asked_at: Instant,
    body_began: Instant,
    /// Number of body bytes received so far, before decoding.
    received: u64,
    body: Body,
    /// The permits from [`WINDOWS`] for the decoder's window, if the window is large.
    window: Option<SemaphorePermit<'static>>,
    recording: Option<Recording>,
    /// The crawl's deadline. If the deadline cuts the body, the stored record says so.
    crawl_deadline: Instant,
}

enum Body {
    /// No byte of the body has been read yet.
    Unread,
    Plain,
    Encoded(Box<Decoder>),
    /// The body has been read to its end, or has failed.
    Over,
}

impl CrawlResponse {
    /// Checks the header of the response to the request sent at `asked_at`. If the response is to
    /// be stored, `recording` contains its recording and the crawl's deadline.
    pub(super) fn vet(
        response: reqwest::Response,
        timeouts: Timeouts,
        asked_at: Instant,
        recording: Option<(Recording, Instant)>,
    ) -> Result<Self, FetchError> {
        if is_too_large(response.headers()) {
            return Err(FetchError::HeaderTooLarge);
        }
        let (recording, until) = recording.unzip();
        Ok(Self {
            response,
            timeouts,
            asked_at,
            body_began: Instant::now(),
            received: 0,
            body: Body::Unread,
            window: None,
            recording,
            crawl_deadline: until.unwrap_or(asked_at),
        })
    }

    pub(in crate::crawl) fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub(in crate::crawl) fn turns_away(&self) -> bool {
        pauses::turns_away(self.status().as_u16())
    }

    /// The redirect target as the header states it; `None` if the response is not a redirect.
    pub(in crate::crawl) fn location(&self) -> Option<&str> {
        let redirects = matches!(self.status().as_u16(), 301 | 302 | 303 | 307 | 308);
        redirects.then(|| self.header(&LOCATION)).flatten()
    }

    pub(in crate::crawl) fn is_html(&self) -> bool {
        self.header(&CONTENT_TYPE).is_some_and(is_html)
    }

    pub(in crate::crawl) fn robots_tags(&self) -> impl Iterator<Item = &str> {
        self.response.headers().get_all("x-robots-tag").iter().filter_map(|value| value.to_str().ok())
    }

    pub(in crate::crawl) fn charset(&self) -> Option<&str> {
        charset(self.header(&CONTENT_TYPE)?)
    }

    /// Records the number of links between the start page and this response's page.
    pub(in crate::crawl) fn found_at(mut self, depth: u32) -> Self {
        if let Some(recording) = &mut self.recording {
            recording.found_at(depth);
        }
        self
    }

    /// The next decoded piece of the body; `None` at its end.
    pub(in crate::crawl) async fn piece(&mut self) -> Result<Option<Bytes>, FetchError> {
        let piece = self.next_piece().await;
        match (&piece, &mut self.recording) {
            (Ok(Some(piece)), Some(recording)) => recording.count(piece.len()),
            (Ok(Some(_)), None) => {}
            _ => self.body = Body::Over,
        }
        piece
    }

    /// Reads a small unwanted body so that the connection can be kept, and ignores errors. `spend`
    /// receives the length of each piece and can stop the reading.
    pub(in crate::crawl) async fn discard(mut self, mut spend: impl FnMut(u64) -> ControlFlow<()>) {
        let mut read: u64 = 0;
        let first_byte = self.body_began.saturating_duration_since(self.asked_at);
        let until = Instant::now() + MIN_UNWANTED_TIME.max(first_byte * 2);
        while let Ok(Ok(Some(piece))) = timeout_at(until, self.piece()).await {
            let length = u64::try_from(piece.len()).unwrap_or(u64::MAX);
            read = read.saturating_add(length);
            if spend(length).is_break() || read > MAX_UNWANTED_BYTES {
                break;
            }
        }
    }

    async fn next_piece(&mut self) -> Result<Option<Bytes>, FetchError> {
        if let Body::Unread = self.body {
            self.body = match self.coding().map_err(FetchError::Decode)? {
                Some(coding) => Body::Encoded(Box::new(Decoder::new(coding))),
                None => Body::Plain,
            };
        }
        loop {
            self.take_window().await?;
            if let Body::Encoded(decoder) = &mut self.body
                && let Some(piece) = decoder.next().map_err(FetchError::Decode)?
            {
                // Yield sometimes, because a small compressed input can keep this loop busy for a
                // long time.
                tokio::task::consume_budget().await;
                return Ok(Some(piece));
            }
            if let Body::Over = self.body {
                return Ok(None);
            }
            let sent = self.sent().await?;
            match (&mut self.body, sent) {
                (Body::Encoded(decoder), Some(sent)) => decoder.feed(sent),
                (Body::Encoded(decoder), None) => {
                    decoder.end();
                    let last = decoder.next().map_err(FetchError::Decode)?;
                    if last.is_none() {
                        return Ok(None);
                    }
                    return Ok(last);
                }
                (_, sent) => return Ok(sent),
            }
        }
    }

    async fn take_window(&mut self) -> Result<(), FetchError> {
        let (Body::Encoded(decoder), None) = (&self.body, &self.window) else { return Ok(()) };
        let Some(bytes) = decoder.window() else { return Ok(()) };
        let units = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX);
        if let Ok(room) = timeout_at(self.asked_at + self.timeouts.total, WINDOWS.acquire_many(units)).await {
            // Never an error, because the semaphore is never closed.
            self.window = room.ok();
            return Ok(());
        }
        if let Some(recording) = &mut self.recording {
            recording.end(Some(Truncated::Time));
        }
        Err(FetchError::Timeout { what: "end of the answer", limit: self.timeouts.total })
    }

    /// Receives and records the next encoded piece of the body; `None` at its end.
    async fn sent(&mut self) -> Result<Option<Bytes>, FetchError> {
        if let Some(recording) = &mut self.recording {
            recording.wait(self.crawl_deadline);
        }
        let sent = self.receive().await;
        if let Some(recording) = &mut self.recording {
            match &sent {
                Ok(Some(sent)) => recording.push(sent).await,
                Ok(None) => recording.end(None),
                Err(FetchError::Timeout { .. } | FetchError::TooSlow) => recording.end(Some(Truncated::Time)),
                Err(_) => recording.end(Some(Truncated::Disconnect)),
            }
        }
        sent
    }

    async fn receive(&mut self) -> Result<Option<Bytes>, FetchError> {
        let last = self.asked_at + self.timeouts.total;
        let slow = too_slow_at(self.body_began, self.received, self.timeouts.slow_after);
        match timeout_at(last.min(slow), self.response.chunk()).await {
            Ok(Ok(Some(sent))) => {
                let bytes = u64::try_from(sent.len()).unwrap_or(u64::MAX);
                METRICS.received(bytes);
                self.received = self.received.saturating_add(bytes);
                Ok(Some(sent))
            }
            Ok(Ok(None)) => Ok(None),
            Ok(Err(error)) => Err(FetchError::Broken(innermost(&error))),
            Err(_) if last <= slow => {
                Err(FetchError::Timeout { what: "end of the answer", limit: self.timeouts.total })
            }
            Err(_) => Err(FetchError::TooSlow),
        }
    }

    fn coding(&self) -> Result<Option<Coding>, DecodeError> {
        Coding::read(self.response.headers().get_all(CONTENT_ENCODING).iter().map(HeaderValue::as_bytes))
    }

    fn header(&self, name: &HeaderName) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }
}

fn is_html(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default();
    media_type.trim().eq_ignore_ascii_case("text/html")
}

fn charset(content_type: &str) -> Option<&str> {
    let parameters = content_type.split(';').skip(1);
    let mut pairs = parameters.filter_map(|parameter| parameter.split_once('='));
    let (_, value) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("charset"))?;
    Some(value.trim().trim_matches(['"', '\'']))
}

#[derive(Debug, Clone, Copy)]
pub(in crate::crawl) struct Timeouts {
    /// Time limit to resolve the name, connect and complete the TLS handshake.
    pub(in crate::crawl) connect: Duration,
    /// Time limit from the start of the request to the response header, including the connection.
    pub(in crate::crawl) first_byte: Duration,
    /// Time limit from the start of the request to the end of the body.
    pub(in crate::crawl) total: Duration,
    /// Time from the header's arrival after which the body's average rate must be at least
    /// [`super::failure_cause::MIN_RATE`].
    pub(in crate::crawl) slow_after: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { connect: seconds(5), first_byte: seconds(15), total: seconds(30), slow_after: seconds(10) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::header::HeaderMap;

    use super::*;

    #[test]
    fn content_types_are_read_however_they_are_written() {
        for html in ["text/html", "Text/HTML; charset=x", " text/html ;", "text/html;;"] {
            assert!(is_html(html), "{html}");
        }
        for other in ["", "text/htmlx", "text/plain; text/html", "application/xhtml+xml"] {
            assert!(!is_html(other), "{other}");
        }
        for (content_type, expected) in [
            ("text/html; charset=gb18030", Some("gb18030")),
            ("text/html; boundary=x; CharSet = \"gbk\" ", Some("gbk")),
            ("text/html; charset='utf-8'", Some("utf-8")),
            ("text/html;charset=", Some("")),
            ("text/html; charset", None),
            ("charset=utf-8", None),
        ] {
            assert_eq!(charset(content_type), expected, "{content_type}");
        }
    }

    #[test]
    fn a_header_is_limited_in_fields_and_bytes() {
        let header = |fields: usize, value: usize| {
            let mut headers = HeaderMap::new();
            for _ in 0..fields {
                headers.append("x-abcd", "v".repeat(value).parse().unwrap());
            }
            is_too_large(&headers)
        };
        assert!(!header(100, 100) && header(101, 100));
        assert!(!header(64, 1014) && header(64, 1015));
    }

    proptest! {
        #[test]
        fn any_content_type_is_read(text in "\\PC{0,60}", charset_ in "[\\x20-\\x7e]{0,20}") {
            is_html(&text);
            let found = charset(&text).map(str::len);
            prop_assert!(found.is_none_or(|length| length < text.len()));
            if !charset_.contains([';']) {
                let written = format!("text/html; charset={charset_}");
                prop_assert_eq!(charset(&written), Some(charset_.trim().trim_matches(['"', '\''])));
            }
        }
    }
}
