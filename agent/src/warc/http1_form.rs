//! Writes a request and the head of its response in the form in which they are stored: HTTP/1.1
//! syntax, even if HTTP/2 was used.
//!
//! The library has already parsed the response. Therefore header names are in lower case, and
//! fields with the same name are adjacent. The transfer encoding is removed together with its
//! header. Values and the body are unchanged.

use hyper::ext::ReasonPhrase;
use reqwest::header::{HOST, HeaderMap, HeaderName, TRANSFER_ENCODING};
use reqwest::{Response, Url, Version};
use url::Position;

/// Initial buffer size for a head: twice what most heads need.
const ROOM: usize = 512;

/// A request with the headers `sent`.
pub(super) fn request(sent: &HeaderMap, url: &Url) -> Vec<u8> {
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
pub(super) fn head(response: &Response) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderValue, USER_AGENT};

    use super::*;

    fn head_of(response: hyper::http::response::Builder) -> Vec<u8> {
        head(&Response::from(response.body("the body").unwrap()))
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
            let request = String::from_utf8(request(&sent, &url.parse().unwrap())).unwrap();
            assert_eq!(request, format!("GET {line} HTTP/1.1\r\nhost: {host}\r\nuser-agent: a\r\n\r\n"));
        }
    }
}
