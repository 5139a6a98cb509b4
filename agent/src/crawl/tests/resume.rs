//! Tests crawls that are stopped in the middle and resume, either after a restart or on another
//! agent.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A site of 202 pages: the start page, and the pages 0 to 200. The start page links to pages 0 to
/// 10. Each of the pages 0 to 19 links to itself and to ten pages.
fn tree(path: &str) -> Reply {
    let number: u32 = if path == "/" { 0 } else { path[1..].parse().unwrap_or(u32::MAX) };
    match number {
        0..20 => {
            let links: String =
                (1..=10).map(|link| format!("<a href=/{}><a href=/{}>", number * 10 + link, number)).collect();
            html(&links)
        }
        20..=200 => html("a leaf"),
        _ => status(404),
    }
}

/// Number of requests that the site received for each page.
fn asked(site: &TestServer) -> HashMap<String, usize> {
    let mut asked = HashMap::new();
    site.paths().into_iter().filter(|path| path != "/robots.txt").for_each(|path| *asked.entry(path).or_default() += 1);
    asked
}

/// Crawls until the site has received `pages` requests in total; then stops the crawl.
async fn crawl_until(site: &TestServer, storage: CrawlStorage, pages: usize) -> Option<Checkpoint> {
    let (stop, crawl) =
        TestCrawl { storage, ..TestCrawl::of(site).policy(Policy { request_interval: MS(1), ..policy() }) }.spawn();
    site.until(|seen| seen.len() >= pages).await;
    stop.cancel();
    match crawl.await.unwrap() {
        CrawlEnd::Stopped(snapshot) => snapshot.map(|snapshot| snapshot.checkpoint),
        other => panic!("{other:?}"),
    }
}

async fn finish(site: &TestServer, storage: CrawlStorage) -> Outcome {
    TestCrawl { storage, ..TestCrawl::of(site) }.outcome().await
}

fn assert_whole(outcome: &Outcome, site: &TestServer, handovers: usize) {
    assert_eq!((outcome.kind, outcome.pages, outcome.refetched, outcome.errors), (OutcomeKind::Complete, 202, 0, 0));
    let asked = asked(site);
    assert_eq!(asked.len(), 202);
    // Each handover may repeat only the request that was unfinished when the crawl was stopped.
    let again: usize = asked.values().map(|times| times - 1).sum();
    assert!(again <= handovers, "{again} pages were asked for again");
}

/// A site of three pages in a row. Each page links to another site.
fn linking(path: &str) -> Reply {
    match path {
        "/" => html("<a href=//first.invalid/><a href=/next>"),
        "/next" => html("<a href=https://second.invalid:8443/x><a href=//first.invalid/again><a href=/last>"),
        "/last" => html("<a href=http://third.invalid/>"),
        _ => status(404),
    }
}

/// The site of [`linking`], but the first request for its last page (the crawl's fourth request) is
/// not answered. So the crawl cannot end before it is stopped.
fn hanging_once() -> impl Fn(&str) -> Reply + Send + Sync + 'static {
    let asked = AtomicBool::new(false);
    move |path| match path {
        "/last" if !asked.swap(true, Ordering::SeqCst) => vec![ServerAction::Wait],
        path => linking(path),
    }
}

#[tokio::test]
async fn an_outcome_names_other_sites_whichever_agent_found_them() {
    let all = ["first.invalid", "https://second.invalid:8443", "third.invalid"];
    let site = TestServer::start(linking).await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 3));
    assert_eq!(outcome.hosts, all);
    let outcome = crawl_with(&site, Policy { max_hosts: 1, ..policy() }).await;
    assert_eq!(outcome.hosts, all[..1]);

    let site = TestServer::start(hanging_once()).await;
    let checkpoint = crawl_until(&site, CrawlStorage::default(), 4).await.expect("a checkpoint").bytes;
    let outcome = finish(&site, CrawlStorage { checkpoint, ..CrawlStorage::default() }).await;
    assert_eq!(outcome.hosts, all);

    let folder = tempfile::tempdir().unwrap();
    let file = Some(folder.path().join("crawl"));
    let site = TestServer::start(hanging_once()).await;
    crawl_until(&site, CrawlStorage { file: file.clone(), ..CrawlStorage::default() }, 4).await;
    let outcome = finish(&site, CrawlStorage { file, ..CrawlStorage::default() }).await;
    assert_eq!(outcome.hosts, all);
}

#[tokio::test]
async fn another_agent_resumes_a_stopped_crawl() {
    let site = TestServer::start(tree).await;
    let mut checkpoint = Vec::new();
    for pages in [30, 60, 150] {
        let storage = CrawlStorage { checkpoint, ..CrawlStorage::default() };
        checkpoint = crawl_until(&site, storage, pages).await.unwrap().bytes;
    }
    let outcome = finish(&site, CrawlStorage { checkpoint, ..CrawlStorage::default() }).await;
    assert_whole(&outcome, &site, 3);
}

#[tokio::test]
async fn a_page_counts_as_visited_though_the_next_request_hangs() {
    let site = TestServer::start(|path| match path {
        "/" => html("<a href=/a><a href=/b>"),
        "/a" => html("<a href=/c>"),
        "/b" => vec![ServerAction::Wait],
        _ => status(404),
    })
    .await;
    let (watched, mut progress) = tokio::sync::watch::channel(CrawlProgress::default());
    let storage = CrawlStorage { progress: Some(watched), ..CrawlStorage::default() };
    let (stop, crawl) = TestCrawl { storage, ..TestCrawl::of(&site) }.spawn();
    // The crawl reads the second page while it waits for the third. The link on the second page is
    // queued, and the second page itself counts as queued until its visit ends.
    progress.wait_for(|progress| progress.pages == 2 && progress.queued == 3).await.unwrap();
    site.wait_for("/b").await;
    stop.cancel();
    let CrawlEnd::Stopped(Some(snapshot)) = crawl.await.unwrap() else { panic!("it was stopped") };
    assert_eq!(snapshot.checkpoint.pages, 2);
}

#[tokio::test]
async fn a_crawl_resumes_after_a_restart() {
    let site = TestServer::start(tree).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("1-1.crawl");
    let storage = || CrawlStorage { file: Some(file.clone()), ..CrawlStorage::default() };
    for pages in [40, 120] {
        crawl_until(&site, storage(), pages).await;
    }
    assert_whole(&finish(&site, storage()).await, &site, 2);
}

#[tokio::test]
async fn the_file_or_the_checkpoint_counts_whichever_is_further() {
    let site = TestServer::start(tree).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("1-1.crawl");
    let early =
        crawl_until(&site, CrawlStorage { file: Some(file.clone()), ..CrawlStorage::default() }, 20).await.unwrap();
    let late = crawl_until(&site, CrawlStorage { checkpoint: early.bytes.clone(), ..CrawlStorage::default() }, 100)
        .await
        .unwrap();
    assert!(early.pages < late.pages);
    // Now the checkpoint has progressed further than the file. After this crawl, the file has
    // progressed further than the checkpoint.
    crawl_until(
        &site,
        CrawlStorage { file: Some(file.clone()), checkpoint: late.bytes, ..CrawlStorage::default() },
        150,
    )
    .await;
    let outcome =
        finish(&site, CrawlStorage { file: Some(file), checkpoint: early.bytes, ..CrawlStorage::default() }).await;
    assert_whole(&outcome, &site, 3);
}

#[tokio::test]
async fn a_crawl_uses_no_state_of_another_site_or_of_a_lost_lease() {
    let (site, other) = (TestServer::start(tree).await, TestServer::start(tree).await);
    let checkpoint = crawl_until(&other, CrawlStorage::default(), 30).await.unwrap().bytes;
    assert_whole(&finish(&site, CrawlStorage { checkpoint, ..CrawlStorage::default() }).await, &site, 0);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("1-1.crawl");
    let storage = |history| CrawlStorage { file: Some(file.clone()), history, ..CrawlStorage::default() };
    let site = TestServer::start(tree).await;
    crawl_until(&site, storage(5), 30).await;
    let before = site.requests().len();
    let outcome = finish(&site, storage(6)).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 202));
    assert!(site.requests().len() >= before + 202, "each page was fetched again");
}

#[tokio::test]
async fn a_crawl_with_an_unreadable_state_starts_again() {
    let site = TestServer::start(tree).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("1-1.crawl");
    std::fs::write(&file, "what is this?").unwrap();
    let storage = CrawlStorage { file: Some(file), checkpoint: vec![1, 2, 3], ..CrawlStorage::default() };
    assert_whole(&finish(&site, storage).await, &site, 0);
}

#[tokio::test]
async fn the_time_of_earlier_parts_counts_against_the_budget() {
    let site = TestServer::start(tree).await;
    let checkpoint = crawl_until(&site, CrawlStorage::default(), 30).await.unwrap();
    let storage = CrawlStorage { checkpoint: checkpoint.bytes, ..CrawlStorage::default() };
    let policy = Policy { max_duration: MS(1), ..policy() };
    let outcome = TestCrawl { storage, ..TestCrawl::of(&site).policy(policy) }.outcome().await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Truncated(Budget::Duration), checkpoint.pages));
    assert!(outcome.duration > MS(1));
}
