//! Encoded bodies, from the request that asks for them to the links in them.

use super::raw::{RawSite, say, whole};
use super::*;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn deflate(text: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn brotli(text: &[u8]) -> Vec<u8> {
    let mut encoder = ::brotli::CompressorWriter::new(Vec::new(), 4096, 3, 22);
    encoder.write_all(text).unwrap();
    encoder.into_inner()
}

fn zstd(text: &[u8]) -> Vec<u8> {
    ::zstd::stream::encode_all(text, 1).unwrap()
}

/// A coding as `Content-Encoding` names it, and what encodes by it.
type Encoder = (&'static str, fn(&[u8]) -> Vec<u8>);

const ENCODERS: [Encoder; 4] = [("gzip", gzip), ("deflate", deflate), ("br", brotli), ("zstd", zstd)];

#[tokio::test]
async fn links_are_found_in_whatever_a_page_is_encoded_by() {
    let site = TestSite::start(|path| match ENCODERS.iter().find(|(name, _)| path[1..] == **name) {
        Some((name, encode)) => Reply::Encoded(name, encode(format!("<a href=/behind-{name}>").as_bytes())),
        None if path == "/" => html("<a href=/gzip><a href=/deflate><a href=/br><a href=/zstd>"),
        None if path.starts_with("/behind-") => html("behind"),
        None => Reply::status(404),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (Kind::Complete, 9, 0), "{}", outcome.message);
}

#[tokio::test]
async fn what_can_be_decoded_is_asked_for_and_nothing_else_is() {
    let site = RawSite::start(|_| whole("a page")).await;
    outcome_of(job(&site.origin(), policy()), context(&["127.0.0.1/32"], None)).await;
    for head in site.heads() {
        assert!(head.to_lowercase().contains("\r\naccept-encoding: gzip, br, zstd\r\n"), "{head}");
    }
    assert_eq!((site.heads().len(), site.connections()), (2, 1), "one connection is enough");
}

#[tokio::test]
async fn a_large_body_is_decoded_once_there_is_room_for_its_window() {
    let text = "<a href=/next>".to_owned() + &(0..400_000).map(|number| number.to_string()).collect::<String>();
    let large = brotli(text.as_bytes());
    let site = TestSite::start(move |path| match path {
        "/" => Reply::Encoded("br", large.clone()),
        "/next" => html("next"),
        _ => Reply::status(404),
    })
    .await;
    let windows = super::super::fetch::WINDOWS.acquire_many(64).await.unwrap();
    let mut crawl = std::pin::pin!(crawl(&site));
    assert!(timeout(MS(500), &mut crawl).await.is_err(), "others have the room");
    drop(windows);
    let outcome = crawl.await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (Kind::Complete, 2, 0), "{}", outcome.message);
}

#[tokio::test]
async fn a_page_that_says_it_is_encoded_and_is_not_is_read() {
    let site = TestSite::start(|path| match path {
        "/" => Reply::Encoded("gzip", b"<a href=/next>".to_vec()),
        "/next" => Reply::Encoded("utf-8", b"<a href=/last>".to_vec()),
        "/last" => Reply::Encoded("gzip", Vec::new()),
        _ => Reply::status(404),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (Kind::Complete, 3, 0), "{}", outcome.message);
}

#[tokio::test]
async fn a_body_that_is_not_what_it_says_is_an_error_that_says_so() {
    let whole = gzip(b"<a href=/never>");
    let half = whole[..whole.len() / 2].to_vec();
    let more = [&*whole, b"more"].concat();
    let twice = gzip(&whole);
    let cases = [
        ("gzip", half, "the gzip body ends too early"),
        ("gzip", more, "the gzip body is followed by something else"),
        ("gzip, gzip", twice, "the body is encoded more than once: gzip, gzip"),
        ("br", b"<html>".to_vec(), "the body is broken brotli"),
        ("compress", b"?".to_vec(), "the body is encoded as 'compress', which was not asked for"),
    ];
    for (coding, body, expected) in cases {
        let site = TestSite::start(move |path| match path {
            "/" => html("<a href=/page><a href=/after>"),
            "/page" => Reply::Encoded(coding, body.clone()),
            "/after" => html("after"),
            _ => Reply::status(404),
        })
        .await;
        let outcome = crawl(&site).await;
        assert_eq!(outcome.message, format!("{}/page: {expected}", site.origin()));
        assert_eq!((outcome.kind, outcome.pages), (Kind::Complete, 2), "{expected}");
    }
}

#[tokio::test]
async fn a_bomb_is_given_up_and_the_crawl_goes_on() {
    let zeros = vec![b' '; 64 << 20];
    let bombs: Vec<(&str, Vec<u8>)> = ENCODERS.iter().map(|(name, encode)| (*name, encode(&zeros))).collect();
    let site = TestSite::start(move |path| match bombs.iter().find(|(name, _)| path[1..] == **name) {
        Some((name, bomb)) => Reply::Encoded(name, bomb.clone()),
        None if path == "/" => html("<a href=/gzip><a href=/deflate><a href=/br><a href=/zstd><a href=/after>"),
        None if path == "/after" => html("after"),
        None => Reply::status(404),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (Kind::Complete, 2, 4));
    assert_eq!(outcome.message, format!("{}/gzip: the gzip body becomes more than 100 times as large", site.origin()));
    assert!(outcome.bytes < 4 * (1 << 20) + 4 * (128 << 10), "{}", outcome.bytes);
}

#[tokio::test]
async fn bodies_of_errors_and_redirects_may_be_bombs_too() {
    let bomb = gzip(&vec![b' '; 64 << 20]);
    let site = RawSite::start(move |path| {
        let status = if path == "/robots.txt" { "404 Not Found" } else { "500 Broken" };
        let head = format!("HTTP/1.1 {status}\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", bomb.len());
        vec![say(&head), raw::Act::Say(bomb.clone())]
    })
    .await;
    let started = Instant::now();
    let outcome = outcome_of(job(&site.origin(), policy()), context(&["127.0.0.1/32"], None)).await;
    assert_eq!((outcome.kind, outcome.bytes), (Kind::Unreachable, 0));
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test]
async fn links_are_read_in_the_charset_of_their_page() {
    let link = "<a href='/\u{4e2d}?q=\u{4e2d}'>";
    let answer = |content_type: &str, body: Vec<u8>| {
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {length}\r\n\r\n");
        vec![say(&head), raw::Act::Say(body)]
    };
    let gbk = encoding_rs::GBK.encode(link).0.into_owned();
    let marked = [b"<meta charset=gbk>", &*gbk].concat();
    let cases = [
        ("text/html; charset=\"GB2312\"", gbk, "/%E4%B8%AD?q=%D6%D0"),
        ("text/html", marked, "/%E4%B8%AD?q=%D6%D0"),
        ("text/html; charset=utf-8", link.as_bytes().to_vec(), "/%E4%B8%AD?q=%E4%B8%AD"),
        ("text/html; charset=no-such", link.as_bytes().to_vec(), "/%E4%B8%AD?q=%E4%B8%AD"),
    ];
    for (content_type, body, expected) in cases {
        let site = RawSite::start(move |path| match path {
            "/" => answer(content_type, body.clone()),
            _ => whole("a page"),
        })
        .await;
        outcome_of(job(&site.origin(), policy()), context(&["127.0.0.1/32"], None)).await;
        let heads = site.heads();
        assert!(heads[2].starts_with(&format!("GET {expected} ")), "{content_type}: {}", heads[2]);
    }
}
