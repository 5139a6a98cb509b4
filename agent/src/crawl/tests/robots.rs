//! Tests how robots.txt is used by several crawls and by long crawls, and how pages' own directives
//! are used.

use super::*;

fn asked_for_robots(site: &TestServer) -> usize {
    site.paths().iter().filter(|path| *path == "/robots.txt").count()
}

#[tokio::test]
async fn robots_txt_is_requested_once_a_day() {
    let site = TestServer::start(|path| match path {
        "/robots.txt" => page("text/plain", "User-agent: *\nDisallow: /b"),
        "/" => html("<a href=/a><a href=/b>"),
        _ => html("a page"),
    })
    .await;
    let robots = Arc::<RobotsCache>::default();
    for _ in 0..3 {
        let outcome = TestCrawl { robots: Arc::clone(&robots), ..TestCrawl::of(&site) }.outcome().await;
        assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 2));
    }
    assert_eq!((asked_for_robots(&site), site.paths().len()), (1, 7));
    assert!(!site.paths().contains(&"/b".to_owned()));
}

#[tokio::test]
async fn an_unavailable_robots_txt_is_requested_again() {
    let site = TestServer::start(|_| status(503)).await;
    let robots = Arc::<RobotsCache>::default();
    for _ in 0..2 {
        let outcome = TestCrawl { robots: Arc::clone(&robots), ..TestCrawl::of(&site) }.outcome().await;
        assert_eq!(outcome.kind, OutcomeKind::Blocked(Blocker::Robots));
    }
    assert_eq!(asked_for_robots(&site), 2);
}

#[tokio::test]
async fn a_crawl_fetches_robots_txt_again_after_a_day_and_obeys_it() {
    let site = TestServer::start(|path| match path {
        "/robots.txt" => page("text/plain", "User-agent: *\nDisallow: /19\n"),
        path => chain(path, 40),
    })
    .await;
    let day = Duration::from_secs(24 * 3600);
    let crawl = TestCrawl::of(&site).policy(Policy { request_interval: MS(10), ..policy() });
    crawl.robots.put(site.origin().parse().unwrap(), Instant::now() - day + MS(100), None);
    let outcome = crawl.outcome().await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 19));
    assert_eq!(asked_for_robots(&site), 1);
    assert_ne!(site.paths()[0], "/robots.txt");
}

#[tokio::test]
async fn links_of_nofollow_pages_are_not_followed() {
    let site = TestServer::start(|path| match path {
        "/robots.txt" => status(404),
        "/" => html("<a href=/header><a href=/others><a href=/ours>"),
        "/header" => tagged("noindex, nofollow"),
        "/ours" => html("<meta name=landfall-agent content=none><a href=/x3>"),
        "/others" => tagged("otherbot: nofollow"),
        _ => html("a page"),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 5));
    assert_eq!(site.paths()[1..], ["/", "/header", "/others", "/ours", "/behind-otherbot:%20nofollow"]);
}

/// A page with a link and this `X-Robots-Tag` header.
fn tagged(tag: &str) -> Reply {
    answer(200, &format!("content-type: text/html\r\nx-robots-tag: {tag}\r\n"), format!("<a href=\"/behind-{tag}\">"))
}
