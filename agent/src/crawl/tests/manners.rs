//! Tests crawls of sites that require a pause.

use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// Responds to the first `times` requests for `/busy` with status `code`. If `pause` is given, it
/// is sent as `Retry-After`.
fn busy(code: u16, pause: Option<&str>, times: u32) -> impl Fn(&str) -> Reply + Send + Sync + 'static {
    let asked = AtomicU32::new(0);
    let headers = pause.map_or_else(String::new, |pause| format!("retry-after: {pause}\r\n"));
    move |path| match path {
        "/robots.txt" => status(404),
        "/" => html("<a href=/busy><a href=/after>"),
        "/busy" if asked.fetch_add(1, Ordering::Relaxed) < times => answer(code, &headers, ""),
        _ => html("a page"),
    }
}

#[tokio::test]
async fn a_page_is_requested_again_after_the_sites_pause() {
    for code in [429, 503] {
        let site = TestServer::start(busy(code, Some("1"), 1)).await;
        let outcome = crawl(&site).await;
        assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 3, 0));
        assert_eq!(site.paths()[1..], ["/", "/busy", "/busy", "/after"]);
        let seen = site.requests();
        assert!(seen[3].at - seen[2].at >= Duration::from_secs(1), "{:?}", seen[3].at - seen[2].at);
    }
}

#[tokio::test]
async fn a_page_that_is_always_refused_is_requested_three_times() {
    let site = TestServer::start(busy(429, Some("0"), u32::MAX)).await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 1));
    assert_eq!(site.paths()[1..], ["/", "/busy", "/busy", "/busy", "/after"]);
}

#[tokio::test]
async fn a_pause_longer_than_the_crawl_truncates_it_at_once() {
    let site = TestServer::start(busy(503, None, u32::MAX)).await;
    let begun = Instant::now();
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Truncated(Budget::Duration), 1));
    assert!(begun.elapsed() < Duration::from_secs(5), "the slot is not held for nothing");
}

#[tokio::test]
async fn a_restart_does_not_shorten_a_pause() {
    let site = TestServer::start(busy(429, Some("2"), 1)).await;
    let folder = tempfile::tempdir().unwrap();
    let storage = || CrawlStorage { file: Some(folder.path().join("1-1.crawl")), ..CrawlStorage::default() };
    let (stop, crawl) = TestCrawl { storage: storage(), ..TestCrawl::of(&site) }.spawn();
    site.wait_for("/busy").await;
    // Wait until the crawl has written the pause to its file.
    while std::fs::metadata(folder.path().join("1-1.crawl")).unwrap().len() < 80 {
        tokio::task::yield_now().await;
    }
    stop.cancel();
    assert!(matches!(crawl.await.unwrap(), CrawlEnd::Stopped(_)));
    let again = TestCrawl { storage: storage(), ..TestCrawl::of(&site) };
    again.robots.put(site.origin().parse().unwrap(), Instant::now(), None);
    let outcome = again.outcome().await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 3, 0));
    let asked: Vec<Instant> =
        site.requests().iter().filter(|seen| seen.path() == "/busy").map(|seen| seen.at).collect();
    // Allow a small error, because the pause is stored in milliseconds of the wall clock.
    assert!(asked[1] - asked[0] >= MS(1950), "{:?}", asked[1] - asked[0]);
}

#[tokio::test]
async fn many_errors_in_a_minute_cause_a_pause_of_a_minute() {
    let site = TestServer::start(|path| match path {
        "/robots.txt" => status(404),
        "/" => html((0..100).map(|number| format!("<a href=/{number}>")).collect::<String>()),
        _ => status(500),
    })
    .await;
    // The pause exceeds the crawl's time limit, so the crawl ends.
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Truncated(Budget::Duration), 1, 18));
    assert_eq!(site.paths().len(), 20);
}

#[tokio::test]
async fn a_resumed_crawl_with_an_open_breaker_sends_no_request() {
    let site = TestServer::start(|_| html("a page")).await;
    let mut frontier = Frontier::temporary(9, 1000).unwrap();
    frontier.offer(&SitePath::root(), 0);
    (frontier.totals_mut().pages, frontier.totals_mut().failed_in_a_row) = (1, politeness::BREAKER);
    frontier.end_step();
    let checkpoint = frontier.checkpoint().await.unwrap().bytes;
    let storage = CrawlStorage { checkpoint, ..CrawlStorage::default() };
    let outcome = TestCrawl { storage, ..TestCrawl::of(&site) }.outcome().await;
    assert_eq!(outcome.kind, OutcomeKind::Blocked(Blocker::Breaker));
    assert!(outcome.message.ends_with("50 requests in a row failed"), "{}", outcome.message);
    assert_eq!(site.paths(), [""; 0]);
}

#[tokio::test]
async fn a_silent_scheduler_doubles_the_time_between_requests() {
    let site = TestServer::start(|path| if path == "/" { html("<a href=/b>b</a>") } else { html("a page") }).await;
    let silence = SchedulerSilence::default();
    silence.session_ended();
    let permits = AddressPermits::from_scheduler(Arc::new(|_| Box::pin(async { Ok(()) })), silence);
    let policy = Policy { request_interval: MS(200), shortest_interval: MS(200), ..policy() };
    let outcome = TestCrawl { permits, ..TestCrawl::of(&site).policy(policy) }.outcome().await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 2));
    let seen = site.requests();
    let [.., start, other] = &seen[..] else { panic!("two pages and robots.txt") };
    // The server sees a request slightly after the crawl starts it, so accept a slightly smaller
    // gap.
    let apart = other.at.saturating_duration_since(start.at);
    assert!(apart >= MS(370), "{apart:?}");
}

/// Crawls a one-page site with permits from a scheduler. Returns the time from the last request to
/// the end of the crawl.
async fn ends_after(request_interval: Duration) -> Duration {
    let site = TestServer::start(|_| html("a page")).await;
    let permits = AddressPermits::from_scheduler(Arc::new(|_| Box::pin(async { Ok(()) })), SchedulerSilence::default());
    let crawl = TestCrawl { permits, ..TestCrawl::of(&site).policy(Policy { request_interval, ..policy() }) };
    let outcome = crawl.outcome().await;
    let last = site.requests().last().unwrap().at;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 1));
    assert!(outcome.duration < request_interval * 2, "its rest is no part of it: {:?}", outcome.duration);
    last.elapsed()
}

#[tokio::test]
async fn a_crawl_keeps_its_address_for_one_interval_after_its_last_request() {
    let took = ends_after(MS(300)).await;
    // The server sees the last request slightly after the crawl starts it, so accept a slightly
    // shorter time.
    assert!(took >= MS(270), "{took:?}");
}
