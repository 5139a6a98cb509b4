//! Tests the number of connections that a crawl makes, and encoded bodies, from the
//! `Accept-Encoding` of the request to the links in the body.

use super::hostile::HTML;
use super::*;
use crate::testing::{ENCODERS, brotli};

/// Number of pages of the site. Without the delay in `crawl::fetch::requests`, one request in
/// thirty would make a new connection.
const PAGES: u32 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crawl_without_pauses_uses_one_connection() {
    let filler = "text ".repeat(4000);
    let site = TestServer::start(move |path| {
        let next = path[1..].parse::<u32>().unwrap_or(0) + 1;
        let link = if next < PAGES { format!("<a href=/{next}>") } else { String::new() };
        let length = link.len() + 2 * filler.len();
        let head = format!("{HTML}content-length: {length}\r\n\r\n{link}{filler}");
        vec![send(head), ServerAction::Pause(MS(1)), send(&filler)]
    })
    .await;
    let outcome = crawl_with(&site, Policy { max_depth: PAGES, ..policy() }).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, PAGES), "{}", outcome.message);
    // After the first response, the crawler delays each new connection by 5 ms (`ConnectDelay`).
    // The crawler does not make the new connection if the previous one becomes free within this
    // time. On a busy machine the previous connection may become free later, and the crawl then
    // makes another connection.
    assert!(site.connections() <= 3, "{}", site.connections());
}

#[tokio::test]
async fn the_body_of_a_missing_robots_txt_costs_no_connection() {
    let told = |status: &str, more: &str| {
        let half = "text ".repeat(3000);
        let length = 2 * half.len();
        let head = format!("HTTP/1.1 {status}\r\n{more}content-type: text/html\r\ncontent-length: {length}\r\n\r\n");
        vec![send(head), send(&half), ServerAction::Pause(MS(20)), send(&half)]
    };
    let site = TestServer::start(move |path| match path {
        "/robots.txt" => told("301 Moved Permanently", "location: /rules.txt\r\n"),
        "/rules.txt" => told("404 Not Found", ""),
        _ => told("200 OK", ""),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 1), "{}", outcome.message);
    assert_eq!((site.requests().len(), site.connections()), (3, 1));
}

#[tokio::test]
async fn the_slow_body_of_a_missing_robots_txt_is_not_awaited() {
    let began = Instant::now();
    let site = TestServer::start(|path| match path {
        "/robots.txt" => vec![
            send("HTTP/1.1 404 Not Found\r\ncontent-length: 60000\r\n\r\n"),
            ServerAction::Drip(MS(50), b"not here ".to_vec()),
        ],
        _ => html("a page"),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 1), "{}", outcome.message);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[tokio::test]
async fn links_are_found_in_pages_of_every_encoding() {
    const HOME: &str = "<a href=/gzip><a href=/deflate><a href=/br><a href=/zstd>";
    let decoded = |name: &str| format!("<a href=/behind-{name}>{}", "compressible ".repeat(10_000));
    let site = TestServer::start(move |path| match ENCODERS.iter().find(|(name, _)| path[1..] == **name) {
        Some((name, encode)) => {
            let (decoded, body) = (decoded(name), encode(decoded(name).as_bytes()));
            assert!(body.len() < decoded.len() / 10);
            encoded(name, body)
        }
        None if path == "/" => html(HOME),
        None if path.starts_with("/behind-") => html("behind"),
        None => status(404),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 9, 0), "{}", outcome.message);
    let pages = ENCODERS.iter().map(|(name, _)| decoded(name).len() + "behind".len());
    assert_eq!(outcome.bytes, (HOME.len() + pages.sum::<usize>()) as u64, "bytes count as decoded");
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
