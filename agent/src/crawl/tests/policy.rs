//! Tests the parts of a policy that decide which links are followed, and how fast large sites are
//! crawled.

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
