//! Tests encoded bodies, from the `Accept-Encoding` of the request to the links in the body.

use super::*;
use crate::testing::{ENCODERS, brotli};

#[tokio::test]
async fn links_are_found_in_pages_of_every_encoding() {
    let site = TestServer::start(|path| match ENCODERS.iter().find(|(name, _)| path[1..] == **name) {
        Some((name, encode)) => encoded(name, encode(format!("<a href=/behind-{name}>").as_bytes())),
        None if path == "/" => html("<a href=/gzip><a href=/deflate><a href=/br><a href=/zstd>"),
        None if path.starts_with("/behind-") => html("behind"),
        None => status(404),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 9, 0), "{}", outcome.message);
}

#[tokio::test]
async fn accept_encoding_names_the_supported_encodings() {
    let site = TestServer::start(|_| html("a page")).await;
    crawl(&site).await;
    for seen in site.requests() {
        assert_eq!(seen.header("accept-encoding"), "gzip, br, zstd");
    }
    assert_eq!((site.requests().len(), site.connections()), (2, 1), "one connection is enough");
}

#[tokio::test]
async fn a_large_body_waits_for_a_decoding_window() {
    let text = "<a href=/next>".to_owned() + &(0..400_000).map(|number| number.to_string()).collect::<String>();
    let large = brotli(text.as_bytes());
    let site = TestServer::start(move |path| match path {
        "/" => encoded("br", &large),
        "/next" => html("next"),
        _ => status(404),
    })
    .await;
    let windows = super::super::fetch::WINDOWS.acquire_many(64).await.unwrap();
    let mut crawl = std::pin::pin!(crawl(&site));
    assert!(tokio::time::timeout(MS(500), &mut crawl).await.is_err(), "others have the room");
    drop(windows);
    let outcome = crawl.await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 0), "{}", outcome.message);
}

#[tokio::test]
async fn a_page_wrongly_labelled_as_encoded_is_read() {
    let site = TestServer::start(|path| match path {
        "/" => encoded("gzip", "<a href=/next>"),
        "/next" => encoded("utf-8", "<a href=/last>"),
        "/last" => encoded("gzip", ""),
        _ => status(404),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 3, 0), "{}", outcome.message);
}

#[tokio::test]
async fn a_body_that_contradicts_its_header_is_an_error() {
    let whole = gzip(b"<a href=/never>");
    let half = whole[..whole.len() / 2].to_vec();
    let more = [&*whole, b"more"].concat();
    let twice = gzip(&whole);
    let cases = [
        ("gzip", half, "the gzip body ends too early"),
        ("gzip", more, "the gzip body is followed by other data"),
        ("gzip, gzip", twice, "the body is encoded more than once: gzip, gzip"),
        ("br", b"<html>".to_vec(), "the body is not valid brotli"),
        ("compress", b"?".to_vec(), "the body is encoded as 'compress', which was not requested"),
    ];
    for (coding, body, expected) in cases {
        let site = TestServer::start(move |path| match path {
            "/" => html("<a href=/page><a href=/after>"),
            "/page" => encoded(coding, &body),
            "/after" => html("after"),
            _ => status(404),
        })
        .await;
        let outcome = crawl(&site).await;
        assert_eq!(outcome.message, format!("{}/page: {expected}", site.origin()));
        assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 2), "{expected}");
    }
}

#[tokio::test]
async fn a_decompression_bomb_is_abandoned_and_the_crawl_continues() {
    let zeros = vec![b' '; 64 << 20];
    let bombs: Vec<(&str, Vec<u8>)> = ENCODERS.iter().map(|(name, encode)| (*name, encode(&zeros))).collect();
    let site = TestServer::start(move |path| match bombs.iter().find(|(name, _)| path[1..] == **name) {
        Some((name, bomb)) => encoded(name, bomb),
        None if path == "/" => html("<a href=/gzip><a href=/deflate><a href=/br><a href=/zstd><a href=/after>"),
        None if path == "/after" => html("after"),
        None => status(404),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 4));
    assert_eq!(outcome.message, format!("{}/gzip: the gzip body expands more than 100 times", site.origin()));
    assert!(outcome.bytes < 4 * (1 << 20) + 4 * (128 << 10), "{}", outcome.bytes);
}

#[tokio::test]
async fn decompression_bombs_in_errors_and_redirects_cost_little() {
    let bomb = gzip(&vec![b' '; 64 << 20]);
    let site = TestServer::start(move |path| {
        answer(if path == "/robots.txt" { 404 } else { 500 }, "content-encoding: gzip\r\n", &bomb)
    })
    .await;
    let started = Instant::now();
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.bytes), (OutcomeKind::Unreachable, 0));
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test]
async fn links_are_read_in_the_charset_of_their_page() {
    let link = "<a href='/\u{4e2d}?q=\u{4e2d}'>";
    let gbk = encoding_rs::GBK.encode(link).0.into_owned();
    let marked = [b"<meta charset=gbk>", &*gbk].concat();
    let cases = [
        ("text/html; charset=\"GB2312\"", gbk, "/%E4%B8%AD?q=%D6%D0"),
        ("text/html", marked, "/%E4%B8%AD?q=%D6%D0"),
        ("text/html; charset=utf-8", link.as_bytes().to_vec(), "/%E4%B8%AD?q=%E4%B8%AD"),
        ("text/html; charset=no-such", link.as_bytes().to_vec(), "/%E4%B8%AD?q=%E4%B8%AD"),
    ];
    for (content_type, body, expected) in cases {
        let site = TestServer::start(move |path| match path {
            "/" => page(content_type, &body),
            _ => html("a page"),
        })
        .await;
        crawl(&site).await;
        assert_eq!(site.paths()[2], expected, "{content_type}");
    }
}
