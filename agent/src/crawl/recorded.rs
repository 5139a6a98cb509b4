//! What is stored of a request and an answer's head: as HTTP/1.1 writes them, whichever version was spoken.
//!
//! The library has taken the answer apart, so names of headers are in lower case, those of one name stand together, and the transfer
//! encoding is gone, with its header. Values and the body are as they were sent.

use std::io::Write as _;

use hyper::ext::ReasonPhrase;
use reqwest::header::{CONTENT_TYPE, HOST, HeaderMap, HeaderName, TRANSFER_ENCODING};
use reqwest::{Response, Url, Version};
use url::Position;

use crate::clock;
use crate::warc::Answered;

/// A request with these headers, and the head of its answer, which has just come.
pub(super) fn recorded(sent: &HeaderMap, url: &Url, response: &Response) -> Answered {
    let content_type = response.headers().get(CONTENT_TYPE);
    Answered {
        url: url.as_str().to_owned(),
        at: clock::wall(),
        address: response.remote_addr().map(|address| address.ip()),
        request: request(sent, url),
        head: head(response),
        status: response.status().as_u16(),
        content_type: content_type.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()),
    }
}

fn request(sent: &HeaderMap, url: &Url) -> Vec<u8> {
    let mut bytes = format!("GET {} HTTP/1.1\r\n", &url[Position::BeforePath..Position::AfterQuery]).into_bytes();
    // A port that goes without saying is in no URL.
    header(&mut bytes, &HOST, url[Position::BeforeHost..Position::AfterPort].as_bytes());
    sent.iter().for_each(|(name, value)| header(&mut bytes, name, value.as_bytes()));
    bytes.extend(b"\r\n");
    bytes
}

fn head(response: &Response) -> Vec<u8> {
    let version = if response.version() == Version::HTTP_10 { "1.0" } else { "1.1" };
    let mut bytes = format!("HTTP/{version} {} ", response.status().as_u16()).into_bytes();
    let said = response.extensions().get::<ReasonPhrase>().map(ReasonPhrase::as_bytes);
    let reason = || response.status().canonical_reason().unwrap_or_default().as_bytes();
    bytes.extend(said.unwrap_or_else(reason));
    bytes.extend(b"\r\n");
    let stored = response.headers().iter().filter(|(name, _)| *name != TRANSFER_ENCODING);
    stored.for_each(|(name, value)| header(&mut bytes, name, value.as_bytes()));
    bytes.extend(b"\r\n");
    bytes
}

fn header(bytes: &mut Vec<u8>, name: &HeaderName, value: &[u8]) {
    write!(bytes, "{name}: ").expect("a vector takes everything");
    bytes.extend(value);
    bytes.extend(b"\r\n");
}
