//! Tests which links a policy lets a crawl follow, and how fast large sites are crawled; how
//! robots.txt and pages' own directives are used; and how crawls read sitemaps.

use super::*;

fn paths(include: &[&str], exclude: &[&str]) -> PathFilter {
    let mut paths = PathFilter::ALL;
    paths.include(include).unwrap();
    paths.exclude(exclude).unwrap();
    paths
}

#[tokio::test]
async fn links_outside_the_path_filter_are_skipped_and_the_crawl_is_complete() {
    let site = TestServer::start(|path| match path {
        "/robots.txt" => page("text/plain", "User-agent: *\nDisallow:\nSitemap: /map.xml\n"),
        "/map.xml" => {
            page("text/xml", "<urlset><url><loc>/news/listed</loc></url><url><loc>/other</loc></url></urlset>")
        }
        "/" => html("<a href=/news/1><a href=/news/1.pdf><a href=/about><a href=/news/away>"),
        "/news/away" => redirect("/about"),
        "/news/1" => html("<a href=/elsewhere>"),
        _ => html("a page"),
    })
    .await;
    let policy = Policy { paths: paths(&["/news/"], &["/*.pdf$"]), max_depth: 1, ..policy() };
    let outcome = crawl_with(&site, policy).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 3, 0), "{outcome:?}");
    assert_eq!(site.paths(), ["/robots.txt", "/map.xml", "/", "/news/listed", "/news/1", "/news/away"]);
}

#[tokio::test]
async fn the_start_page_is_fetched_whatever_is_excluded() {
    let site = TestServer::start(|path| match path {
        "/robots.txt" => status(404),
        "/" => redirect("/home"),
        _ => html("<a href=/x>"),
    })
    .await;
    let outcome = crawl_with(&site, Policy { paths: paths(&[], &["/"]), ..policy() }).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 1));
    assert_eq!(site.paths(), ["/robots.txt", "/", "/home"]);
}

#[tokio::test]
async fn a_site_whose_last_crawl_was_large_gets_a_shorter_interval() {
    let site = TestServer::start(|path| chain(path, 3)).await;
    let slow = Policy { request_interval: MS(60_000), shortest_interval: MS(800), ..policy() };
    let mut large = TestCrawl::of(&site).policy(slow);
    large.job.last_pages = Some(200_000);
    let outcome = large.outcome().await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 3));
    assert_gaps(&site, MS(800));
}

#[tokio::test]
async fn the_number_of_listed_pages_survives_a_restart() {
    let entries: String = (0..20_000).map(|number| format!("<url><loc>/{number}</loc></url>")).collect();
    let map = format!("<urlset>{entries}</urlset>");
    let site = TestServer::start(move |path| match path {
        "/robots.txt" => {
            page("text/plain", "User-agent: *\nDisallow:\nSitemap: /1.xml\nSitemap: /2.xml\nSitemap: /3.xml\n")
        }
        "/1.xml" | "/2.xml" | "/3.xml" => page("text/xml", &map),
        _ => html("a page"),
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    // If the restarted crawl did not know the site's size, its interval would be 400 ms.
    let policy = Policy { request_interval: MS(400), shortest_interval: MS(1), max_pages: 1_000_000, ..policy() };
    for least in [10, 20] {
        let storage = CrawlStorage { file: Some(folder.path().join("crawl")), ..CrawlStorage::default() };
        let (stop, crawl) = TestCrawl { storage, ..TestCrawl::of(&site).policy(policy.clone()) }.spawn();
        site.until(|seen| seen.len() >= least).await;
        stop.cancel();
        assert!(matches!(crawl.await.unwrap(), CrawlEnd::Stopped(_)));
    }
    let seen = site.requests();
    let maps = site.paths().iter().filter(|path| path.ends_with(".xml")).count();
    assert_eq!(maps, 3, "they are read once");
    let gap = seen[19].at - seen[12].at;
    assert!(gap < MS(2000), "seven requests, robots.txt included, and no 400 ms between them: {gap:?}");
}

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

const LISTED: &str = "<urlset><url><loc>/listed</loc></url><url><loc>/forbidden</loc></url>\
    <url><loc>http://other.invalid/</loc></url></urlset>";

fn site_with(robots: &'static str, sitemap: &'static str) -> impl Fn(&str) -> Reply + Send + Sync + 'static {
    move |path| match path {
        "/robots.txt" => page("text/plain", format!("User-agent: *\nDisallow: /forbidden\n{robots}")),
        "/" => html("<a href=/linked><a href=/listed>"),
        "/index.xml" => page("text/xml", "<sitemapindex><sitemap><loc>/more.xml</loc></sitemap></sitemapindex>"),
        "/more.xml" => page("text/xml", "<urlset><url><loc>/deep</loc></url></urlset>"),
        "/sitemap.xml" => page("text/xml", sitemap),
        "/moved.xml" => redirect("/sitemap.xml"),
        "/linked" | "/listed" | "/deep" => html("a page"),
        _ => status(404),
    }
}

#[tokio::test]
async fn listed_pages_come_before_linked_ones() {
    let site =
        TestServer::start(site_with("Sitemap: /sitemap.xml\nSitemap: /index.xml\nSitemap: /sitemap.xml", LISTED)).await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 4, 0));
    let expected = ["/robots.txt", "/sitemap.xml", "/index.xml", "/more.xml", "/", "/listed", "/deep", "/linked"];
    assert_eq!(site.paths(), expected);
}

#[tokio::test]
async fn a_missing_or_foreign_sitemap_is_only_an_error() {
    let robots = "Sitemap: /gone.xml\nSitemap: http://other.invalid/s.xml\nSitemap: /moved.xml\nSitemap: /forbidden";
    let site = TestServer::start(site_with(robots, LISTED)).await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 3, 1));
    assert_eq!(outcome.message, format!("{}/gone.xml: answered 404, a sitemap was expected", site.origin()));
    assert_eq!(site.paths()[1..5], ["/gone.xml", "/moved.xml", "/sitemap.xml", "/"]);
}

#[tokio::test]
async fn sitemaps_are_not_read_if_the_policy_forbids_it() {
    let site = TestServer::start(site_with("Sitemap: /sitemap.xml", LISTED)).await;
    crawl_with(&site, Policy { sitemaps: false, ..policy() }).await;
    assert_eq!(site.paths(), ["/robots.txt", "/", "/linked", "/listed"]);
}

#[tokio::test]
async fn an_incomplete_sitemap_truncates_the_crawl() {
    let site = TestServer::start(|path| match path {
        "/robots.txt" => page("text/plain", "Sitemap: /sitemap.xml"),
        "/sitemap.xml" => stuck("<urlset><url><loc>/listed</loc></url>"),
        "/" | "/listed" => html("a page"),
        _ => status(404),
    })
    .await;
    let timeouts = Timeouts { total: MS(200), ..Timeouts::default() };
    let outcome = TestCrawl { timeouts, ..TestCrawl::of(&site) }.outcome().await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Truncated(Budget::Pages), 2, 1));
}
