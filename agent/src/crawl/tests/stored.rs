//! Tests which pages crawls store, and that no page counts as visited before it is stored.

use std::path::Path;

use super::*;
use crate::crawl::walk::request_page::MAX_PAGE_BYTES;
use crate::testing::{files, store_config as config, stored_lines as lines};
use crate::warc::read::{WarcRecord, records};
use crate::warc::{ResponseLine, Store};

fn answers(folder: &Path) -> Vec<(ResponseLine, WarcRecord)> {
    let all: Vec<WarcRecord> = files(folder, ".warc.gz").iter().flat_map(|file| records(file).unwrap()).collect();
    let answers = all.into_iter().filter(|record| record.field("WARC-Type") == Some("response"));
    lines(folder).into_iter().zip(answers).collect()
}

/// Crawls a site and stores its pages in a folder.
async fn store(site: &TestServer, folder: &Path, policy: Policy, timeouts: Timeouts) -> Outcome {
    let store = Store::open(&config(folder), "test").unwrap();
    let storage = CrawlStorage { recorder: Some(store.recorder("the site", None)), ..CrawlStorage::default() };
    let outcome = TestCrawl { storage, timeouts, ..TestCrawl::of(site).policy(policy) }.outcome().await;
    store.close().await;
    outcome
}

#[tokio::test]
async fn every_response_is_stored_with_its_request() {
    let site = TestServer::start(|path| match path {
        "/robots.txt" => page("text/plain", "User-agent: *\nDisallow: /private\n"),
        "/" => html("<a href=/moved><a href='/gone?x=%0D%0AY:1'><a href=/stuck><a href=/large><a href=/private>"),
        "/moved" => redirect("/here"),
        "/here" => page("text/plain", "here"),
        "/stuck" => stuck("<p>the beginning"),
        "/large" => page("text/plain", "x".repeat(usize::try_from(MAX_PAGE_BYTES).unwrap() + (1 << 20))),
        _ => status(404),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let timeouts = Timeouts { total: MS(3000), ..Timeouts::default() };
    let outcome = store(&site, folder.path(), policy(), timeouts).await;
    assert_eq!((outcome.pages, outcome.errors), (2, 3));
    let stored = answers(folder.path());
    let read: Vec<(&str, u16, Option<&str>, Option<u32>)> = stored
        .iter()
        .map(|(line, _)| (&line.url[site.origin().len()..], line.status, line.truncated.as_deref(), line.depth))
        .collect();
    let expected = [
        ("/robots.txt", 200, None, None),
        ("/", 200, None, Some(0)),
        ("/moved", 302, None, Some(1)),
        ("/here", 200, None, Some(1)),
        ("/gone?x=%0D%0AY:1", 404, None, Some(1)),
        ("/stuck", 200, Some("time"), Some(1)),
        ("/large", 200, Some("length"), Some(1)),
    ];
    assert_eq!(read, expected);
    for (line, record) in &stored {
        assert_eq!(record.field("WARC-Target-URI"), Some(line.url.as_str()));
        assert_eq!((record.field("WARC-IP-Address"), line.ip.as_deref()), (Some("127.0.0.1"), Some("127.0.0.1")));
        assert_eq!((line.offset, line.length), (record.offset, record.length));
        assert_eq!(line.stored_bytes, record.payload().len() as u64);
        assert_eq!((line.site.as_str(), line.task), ("the site", None));
    }
    let text = |record: &WarcRecord| String::from_utf8(record.block.clone()).unwrap();
    let (home, moved, stuck) = (text(&stored[1].1), text(&stored[2].1), text(&stored[5].1));
    assert!(
        home.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: "),
        "{home}"
    );
    assert!(home.ends_with("<a href=/private>"));
    assert!(moved.starts_with("HTTP/1.1 302 Found\r\nlocation: /here\r\n"), "{moved}");
    // The server sent the body in chunks, and the library has joined them.
    assert!(stuck.ends_with("\r\n\r\n<p>the beginning") && !stuck.contains("transfer-encoding"), "{stuck}");
    let all = records(&files(folder.path(), ".warc.gz")[0]).unwrap();
    let requests: Vec<String> =
        all.iter().filter(|record| record.field("WARC-Type") == Some("request")).map(text).collect();
    assert_eq!(requests.len(), stored.len());
    let host = site.origin().replace("http://", "");
    let expected = format!(
        "GET /gone?x=%0D%0AY:1 HTTP/1.1\r\nhost: {host}\r\nuser-agent: landfall-agent/0.1 (+https://example.org/crawler)\r\naccept: "
    );
    assert!(requests[4].starts_with(&expected), "{}", requests[4]);
}

#[tokio::test]
async fn a_compressed_body_is_stored_as_its_header_declares() {
    let text = "<p>the same again and again".repeat(100);
    let sent = gzip(text.as_bytes());
    let body = sent.clone();
    let site = TestServer::start(move |path| if path == "/" { encoded("gzip", &body) } else { status(404) }).await;
    let folder = tempfile::tempdir().unwrap();
    store(&site, folder.path(), policy(), Timeouts::default()).await;
    let stored = answers(folder.path());
    let (line, record) = stored.last().unwrap();
    assert_eq!(line.bytes, text.len() as u64);
    // If the stored body is still encoded, the record keeps the `Content-Encoding` header.
    let head = record.block[..record.block.len() - record.payload().len()].to_ascii_lowercase();
    let encoded = head.windows(22).any(|field| field == b"content-encoding: gzip");
    assert_eq!(record.payload(), if encoded { sent.as_slice() } else { text.as_bytes() });
    assert_eq!(line.stored_bytes, record.payload().len() as u64);
}

#[tokio::test]
async fn a_page_cut_by_the_crawls_deadline_is_stored_as_truncated_by_time() {
    let site = TestServer::start(|path| match path {
        "/" => html("<a href=/stuck>"),
        "/stuck" => stuck("the beginning"),
        _ => status(404),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let policy = Policy { max_duration: MS(400), ..policy() };
    let outcome = store(&site, folder.path(), policy, Timeouts::default()).await;
    assert_eq!(outcome.kind, OutcomeKind::Truncated(Budget::Duration));
    let stored = answers(folder.path());
    let (line, record) = stored.last().unwrap();
    assert_eq!((line.truncated.as_deref(), record.payload()), (Some("time"), b"the beginning".as_slice()));
}

#[tokio::test]
async fn no_page_counts_as_visited_before_it_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let (pages, file) = (folder.path().join("pages"), folder.path().join("1-1.crawl"));
    let stored = Store::open(&config(&pages), "test").unwrap();
    let away = pages.clone();
    let site = TestServer::start(move |path| {
        // Once the first page is requested, nothing can be stored.
        if path == "/" && away.exists() {
            std::fs::remove_dir_all(&away).unwrap();
        }
        chain(path, 40)
    })
    .await;
    let storage = |store: &Store| CrawlStorage {
        file: Some(file.clone()),
        recorder: Some(store.recorder("the site", None)),
        ..CrawlStorage::default()
    };
    let crawl = TestCrawl { storage: storage(&stored), ..TestCrawl::of(&site) };
    crawl.robots.put(site.origin().parse().unwrap(), Instant::now(), None);
    let stop = crawl.stop.clone();
    let crawl = tokio::spawn(crawl.run());
    site.wait_for("/").await;
    while stored.paused().is_none() {
        tokio::time::sleep(MS(1)).await;
    }
    stop.cancel();
    let CrawlEnd::Stopped(snapshot) = crawl.await.unwrap() else { panic!("it was not stopped") };
    assert!(snapshot.is_none(), "no agent may go on from pages that are not stored");
    let log = Frontier::open(&file, &site.origin(), 100, 1000).unwrap();
    assert_eq!((log.totals().pages, log.is_new()), (0, true));
    drop(log);
    stored.close().await;
    // A later crawl that can store its pages stores all of them.
    let site_again = TestServer::start(|path| chain(path, 40)).await;
    let stored = Store::open(&config(&pages), "test").unwrap();
    let outcome = TestCrawl { storage: storage(&stored), ..TestCrawl::of(&site_again) }.outcome().await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 40));
    // The outcome exists, so its pages must be on the disk although the WARC file is still open.
    let urls: std::collections::BTreeSet<String> = lines(&pages).into_iter().map(|line| line.url).collect();
    assert_eq!(urls.len(), 41);
    stored.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crawls_that_share_a_writer_wait_for_it_and_not_for_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&config(folder.path()), "test").unwrap();
    let tree = |path: &str| match path {
        "/" => html((0..40).map(|number| format!("<a href=/{number}>")).collect::<String>()),
        "/robots.txt" => status(404),
        _ => html("a leaf"),
    };
    let mut sites = Vec::new();
    for _ in 0..100 {
        sites.push(TestServer::start(tree).await);
    }
    let crawls = sites.iter().map(|site| {
        let storage = CrawlStorage { recorder: Some(store.recorder("the site", None)), ..CrawlStorage::default() };
        // Enough time for 4,000 requests even if other tests run at the same time.
        let policy = Policy { max_duration: Duration::from_secs(300), ..policy() };
        TestCrawl { storage, ..TestCrawl::of(site).policy(policy) }.outcome()
    });
    for outcome in futures_util::future::join_all(crawls.map(tokio::spawn)).await {
        let outcome = outcome.unwrap();
        assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 41));
    }
    store.close().await;
    assert_eq!(lines(folder.path()).len(), 100 * 42);
}
