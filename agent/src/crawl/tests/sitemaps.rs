//! Tests how crawls read sitemaps.

use super::*;

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
