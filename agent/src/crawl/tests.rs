//! Tests crawls of a real server on loopback.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::fetch::Timeouts;
use super::frontier::Frontier;
use super::html::site_urls::SitePath;
use super::site_crawl::run_within;
use super::walk::request_page::MAX_PAGE_BYTES;
use super::walk::visit_pages::MAX_REDIRECTS;
use super::*;
use crate::net::request_context::RequestContext;
use crate::testing::{
    DnsAnswer, Reply, ServerAction, TestCertificate, TestNames, TestServer, answer, context, encoded, gzip, html, page,
    redirect, send, status, stuck,
};

mod connections_and_encodings;
mod guarded;
mod hostile;
mod hostile_tls;
mod manners;
mod policy_robots_and_sitemaps;
mod properties;
mod resume;
mod stored;

const MS: fn(u64) -> Duration = Duration::from_millis;

pub(super) fn policy() -> Policy {
    Policy {
        max_pages: 1000,
        max_bytes: 1 << 30,
        max_depth: 100,
        max_hosts: 100,
        max_duration: Duration::from_secs(30),
        request_interval: Duration::ZERO,
        shortest_interval: Duration::ZERO,
        sitemaps: true,
        paths: PathFilter::ALL,
    }
}

struct TestCrawl {
    job: Job,
    storage: CrawlStorage,
    permits: AddressPermits,
    context: Arc<RequestContext>,
    robots: Arc<RobotsCache>,
    timeouts: Timeouts,
    stop: CancellationToken,
}

impl TestCrawl {
    fn of(site: &TestServer) -> Self {
        Self::at(&site.origin())
    }

    fn at(origin: &str) -> Self {
        let mut crawl = Self::named(origin);
        crawl.job.origin = Some(origin.parse().unwrap());
        crawl
    }

    /// A crawl of a site whose origin is not known yet.
    fn named(name: &str) -> Self {
        Self {
            job: Job { name: name.to_owned(), origin: None, policy: policy(), last_pages: None },
            storage: CrawlStorage::default(),
            permits: AddressPermits::default(),
            context: Arc::new(context(&["127.0.0.1/32"])),
            robots: Arc::default(),
            timeouts: Timeouts::default(),
            stop: CancellationToken::new(),
        }
    }

    fn policy(mut self, policy: Policy) -> Self {
        self.job.policy = policy;
        self
    }

    fn context(self, context: RequestContext) -> Self {
        Self { context: Arc::new(context), ..self }
    }

    /// Spawns the crawl, which runs until its end or until the returned token is cancelled.
    fn spawn(self) -> (CancellationToken, JoinHandle<CrawlEnd>) {
        (self.stop.clone(), tokio::spawn(self.run()))
    }

    async fn run(self) -> CrawlEnd {
        let Self { timeouts, job, storage, permits, context, robots, stop } = self;
        run_within(timeouts, job, storage, permits, context, robots, stop).await
    }

    async fn outcome(self) -> Outcome {
        match self.run().await {
            CrawlEnd::Outcome(outcome) => outcome,
            other => panic!("{other:?}"),
        }
    }
}

async fn crawl_with(site: &TestServer, policy: Policy) -> Outcome {
    TestCrawl::of(site).policy(policy).outcome().await
}

async fn crawl(site: &TestServer) -> Outcome {
    TestCrawl::of(site).outcome().await
}

/// A site of `pages` pages. Each page links to the next.
fn chain(path: &str, pages: u32) -> Reply {
    let number = if path == "/" { 0 } else { path[1..].parse().unwrap_or(u32::MAX) };
    match number {
        number if number.saturating_add(1) < pages => html(format!("<a href=/{}>", number + 1)),
        number if number < pages => html("the end"),
        _ => status(404),
    }
}

#[tokio::test]
async fn a_small_site_is_fetched_whole() {
    let pages = [
        ("/", "<a href=/a><a href='b?x=1&amp;y=2'><a href=/#top><a href=http://other.invalid/>"),
        ("/a", "<a href=/><a href=/dir/c>"),
        ("/b?x=1&y=2", "<iframe src=/dir/../a></iframe>"),
        ("/dir/c", "<base href=/deep/><area href=d>"),
        ("/deep/d", "no more"),
    ];
    let site = TestServer::start(move |path| {
        pages.iter().find(|(at, _)| *at == path).map_or_else(|| status(404), |(_, body)| html(body))
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!(outcome.kind, OutcomeKind::Complete);
    assert_eq!(outcome.pages, 5);
    assert_eq!(outcome.bytes, pages.iter().map(|(_, body)| body.len() as u64).sum::<u64>());
    assert_eq!((outcome.errors, outcome.message.as_str()), (0, ""));
    assert_eq!(outcome.origin, Some(site.origin()));
    assert!(outcome.rtt.unwrap() < outcome.duration);
    // The pages come in breadth-first order, after robots.txt.
    assert_eq!(site.paths(), ["/robots.txt", "/", "/a", "/b?x=1&y=2", "/dir/c", "/deep/d"]);
    let contact = "landfall-agent/0.1 (+https://example.org/crawler)";
    assert!(site.requests().iter().all(|request| request.header("user-agent") == contact));
}

#[tokio::test]
async fn forbidden_paths_are_never_requested() {
    let site = TestServer::start(|path| match path {
        "/robots.txt" => page("text/plain", "User-agent: *\nDisallow: /private\nDisallow: /moved-there\n"),
        "/" => html("<a href=/private/1><a href=/open><a href=/moved><a href=/private/2>"),
        "/moved" => redirect("/moved-there"),
        _ => html("<a href=/private/3>"),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 0));
    assert_eq!(site.paths(), ["/robots.txt", "/", "/open", "/moved"]);
}

#[tokio::test]
async fn requests_start_an_interval_apart() {
    let site = TestServer::start(|path| match path {
        "/2" => redirect("/3"),
        "/missing" => status(404),
        path => chain(path, 6),
    })
    .await;
    crawl_with(&site, Policy { request_interval: MS(800), ..policy() }).await;
    assert!(site.requests().len() >= 7);
    assert_gaps(&site, MS(800));
}

#[tokio::test]
async fn a_crawl_delay_slows_the_crawl_down() {
    let site = TestServer::start(|path| match path {
        "/robots.txt" => page("text/plain", "User-agent: *\nCrawl-delay: 0.8\n"),
        path => chain(path, 3),
    })
    .await;
    let outcome = crawl_with(&site, Policy { request_interval: MS(10), ..policy() }).await;
    assert_eq!(outcome.pages, 3);
    assert_gaps(&site, MS(800));
}

/// Maximum delay until the server sees a request, on a machine that runs other tests at the same
/// time. This delay is an eighth of the tested intervals.
const LATER: Duration = Duration::from_millis(100);

/// Checks the gaps between requests as the server saw them. If the first of two requests arrives
/// late, their gap looks shorter. So gaps may be shorter than the interval by `LATER`.
fn assert_gaps(site: &TestServer, interval: Duration) {
    let seen = site.requests();
    for pair in seen.windows(2) {
        let gap = pair[1].at - pair[0].at;
        assert!(gap + LATER >= interval, "{gap:?} between {} and {}", pair[0].path(), pair[1].path());
    }
    let whole = seen[seen.len() - 1].at - seen[0].at;
    let gaps = u32::try_from(seen.len() - 1).unwrap();
    assert!(whole + LATER >= interval * gaps, "{whole:?} for {gaps} gaps");
}

#[tokio::test]
async fn the_page_budget_truncates() {
    let site = TestServer::start(|path| chain(path, 10)).await;
    let outcome = crawl_with(&site, Policy { max_pages: 4, ..policy() }).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Truncated(Budget::Pages), 4));
    assert_eq!(site.paths().len(), 5);
}

#[tokio::test]
async fn a_budget_that_just_suffices_does_not_truncate() {
    let site = TestServer::start(|path| chain(path, 4)).await;
    let exact = crawl(&site).await;
    let just_enough = Policy { max_pages: 4, max_bytes: exact.bytes, max_depth: 3, ..policy() };
    let outcome = crawl_with(&site, just_enough).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 4));
}

#[tokio::test]
async fn the_byte_budget_truncates_and_the_body_is_cut() {
    let large = "x".repeat(4 << 20);
    let site = TestServer::start(move |path| match path {
        "/" => html("<a href=/large><a href=/after>"),
        _ => page("text/plain", &large),
    })
    .await;
    let outcome = crawl_with(&site, Policy { max_bytes: 100_000, ..policy() }).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Truncated(Budget::Bytes), 1));
    assert!(outcome.bytes > 100_000 && outcome.bytes < 2 << 20, "{}", outcome.bytes);
    assert_eq!(site.paths(), ["/robots.txt", "/", "/large"]);
}

#[tokio::test]
async fn a_page_over_the_cap_is_an_error_and_the_crawl_is_not_complete() {
    let large = "x".repeat(usize::try_from(MAX_PAGE_BYTES).unwrap() + 1);
    let site = TestServer::start(move |path| match path {
        "/" => html("<a href=/large><a href=/after>"),
        "/large" => page("text/plain", &large),
        _ => chain(path, 0),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Truncated(Budget::Bytes), 1, 2));
    assert!(outcome.message.ends_with("/large: is larger than 5 MiB"), "{}", outcome.message);
    assert_eq!(site.paths().last().map(String::as_str), Some("/after"));
}

#[tokio::test]
async fn the_depth_budget_truncates_only_when_something_lies_beyond() {
    let site = TestServer::start(|path| chain(path, 5)).await;
    let outcome = crawl_with(&site, Policy { max_depth: 2, ..policy() }).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Truncated(Budget::Depth), 3));
    let outcome = crawl_with(&site, Policy { max_depth: 4, ..policy() }).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 5));
}

#[tokio::test]
async fn the_time_budget_truncates() {
    let site = TestServer::start(|path| chain(path, 1000)).await;
    let patient = Policy { request_interval: MS(20), max_duration: MS(200), ..policy() };
    let outcome = crawl_with(&site, patient).await;
    assert_eq!(outcome.kind, OutcomeKind::Truncated(Budget::Duration));
    assert!(outcome.pages > 0 && outcome.pages <= 10, "{}", outcome.pages);
    assert!(outcome.duration < MS(400), "{:?}", outcome.duration);
}

#[tokio::test]
async fn the_time_budget_cuts_an_answer_and_keeps_what_came() {
    let site = TestServer::start(|path| match path {
        "/" => html("<a href=/stuck>"),
        "/stuck" => stuck("half of it"),
        _ => status(404),
    })
    .await;
    let outcome = crawl_with(&site, Policy { max_duration: MS(400), ..policy() }).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Truncated(Budget::Duration), 1));
    assert_eq!(outcome.bytes, "<a href=/stuck>half of it".len() as u64);
    assert!(outcome.duration < MS(1000), "{:?}", outcome.duration);
}

#[tokio::test]
async fn broken_links_are_counted() {
    let home = "<a href=/gone><a href=/broken><a href=/reset><a href=/nowhere><a href=/fine>";
    let site = TestServer::start(move |path| match path {
        "/" => html(home),
        "/gone" => answer(410, "", "this body is no page's"),
        "/broken" => status(502),
        "/reset" => vec![ServerAction::Reset],
        "/nowhere" => status(302),
        "/fine" => html("fine"),
        _ => status(404),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 4));
    assert_eq!(outcome.bytes, (home.len() + "fine".len()) as u64);
    assert_eq!(outcome.message, format!("{}/gone: answered 410", site.origin()));
}

#[tokio::test]
async fn a_page_that_hangs_times_out() {
    let site = TestServer::start(|path| match path {
        "/" => html("<a href=/silent><a href=/stuck><a href=/fine>"),
        "/silent" => vec![ServerAction::Wait],
        "/stuck" => stuck("half"),
        "/fine" => html("fine"),
        _ => status(404),
    })
    .await;
    let timeouts = Timeouts { connect: MS(200), first_byte: MS(200), total: MS(300), ..Timeouts::default() };
    let outcome = TestCrawl { timeouts, ..TestCrawl::of(&site) }.outcome().await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 2));
    assert_eq!(outcome.message, format!("{}/silent: no answer within 200ms", site.origin()));
    assert!(outcome.duration >= MS(500) && outcome.duration < MS(2000), "{:?}", outcome.duration);
}

#[tokio::test]
async fn redirects_are_followed_inside_the_site_only() {
    let outside = TestServer::start(|_| html("outside")).await;
    let away = format!("{}/page", outside.origin());
    let site = TestServer::start(move |path| match path {
        "/" => redirect("/home"),
        "/home" => html("<a href=/a><a href=/b><a href=/away><a href=/loop><a href=/endless/0>"),
        "/a" => redirect("b"),
        "/away" => redirect(&away),
        "/loop" => redirect("/loop2"),
        "/loop2" => redirect("/loop"),
        "/b" => html("b"),
        path => match path.strip_prefix("/endless/").and_then(|number| number.parse::<u32>().ok()) {
            Some(number) => redirect(&format!("/endless/{}", number + 1)),
            None => status(404),
        },
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 2));
    assert_eq!(outcome.message, format!("{}/loop2: redirects in a loop", site.origin()));
    assert!(outside.paths().is_empty());
    let paths = site.paths();
    assert_eq!(paths.iter().filter(|path| *path == "/b").count(), 1);
    assert_eq!(paths.iter().filter(|path| path.starts_with("/endless/")).count(), 1 + MAX_REDIRECTS);
}

#[tokio::test]
async fn a_start_page_that_redirects_out_of_the_site_is_unreachable_and_names_the_other_site() {
    let moved = |path: &str| if path == "/" { redirect("http://moved.invalid/") } else { status(404) };
    let outcome = crawl(&TestServer::start(moved).await).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Unreachable, 0, 0));
    assert!(outcome.message.ends_with("redirects to http://moved.invalid/, outside the site"), "{}", outcome.message);
    assert_eq!(outcome.hosts, ["moved.invalid"]);
}

#[tokio::test]
async fn robots_txt_may_be_elsewhere_but_not_endlessly() {
    let elsewhere = TestServer::start(|_| page("text/plain", "User-agent: landfall-agent\nDisallow: /\n")).await;
    let target = format!("http://me:secret@{}/rules", elsewhere.addr);
    let site =
        TestServer::start(move |path| if path == "/robots.txt" { redirect(&target) } else { html("page") }).await;
    let outcome = crawl(&site).await;
    assert_eq!(
        (outcome.kind, outcome.message),
        (OutcomeKind::Blocked(Blocker::Robots), format!("robots.txt forbids {}/", site.origin()))
    );
    assert!(elsewhere.requests().iter().all(|request| request.header("authorization").is_empty()));

    let site = TestServer::start(|path| if path == "/" { html("page") } else { redirect(&format!("{path}x")) }).await;
    assert_eq!(crawl(&site).await.kind, OutcomeKind::Complete);
    assert_eq!(site.paths().len(), 1 + MAX_REDIRECTS + 1);
}

#[tokio::test]
async fn an_unavailable_robots_txt_forbids_and_a_missing_one_allows() {
    for (code, kind) in [
        (500, OutcomeKind::Blocked(Blocker::Robots)),
        (503, OutcomeKind::Blocked(Blocker::Robots)),
        (429, OutcomeKind::Blocked(Blocker::Robots)),
        (404, OutcomeKind::Complete),
        (401, OutcomeKind::Complete),
    ] {
        let site = TestServer::start(move |path| match path {
            "/robots.txt" => status(code),
            _ => html("page"),
        })
        .await;
        let outcome = crawl(&site).await;
        assert_eq!(outcome.kind, kind, "{code}");
        if kind == OutcomeKind::Blocked(Blocker::Robots) {
            assert_eq!(outcome.message, format!("{}/robots.txt: answered {code}", site.origin()));
            assert_eq!(site.paths(), ["/robots.txt"]);
        }
    }
    let site =
        TestServer::start(|path| if path == "/robots.txt" { vec![ServerAction::Reset] } else { html("page") }).await;
    assert_eq!(crawl(&site).await.kind, OutcomeKind::Blocked(Blocker::Robots));
}

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let outcome = TestCrawl::at(&origin).outcome().await;
    assert_eq!((outcome.kind, outcome.pages, outcome.origin), (OutcomeKind::Unreachable, 0, None));
    assert!(outcome.message.contains("Connection refused"), "{}", outcome.message);
    assert_eq!(outcome.trouble, Some(Trouble::Refused));
}

#[tokio::test]
async fn a_site_without_a_page_is_unreachable() {
    let site = TestServer::start(|path| status(if path == "/" { 503 } else { 404 })).await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Unreachable, 0, 1));
    assert_eq!(outcome.trouble, Some(Trouble::ServerError));
    assert_eq!(outcome.message, format!("{}/: answered 503, and no time is left for another request", site.origin()));
}

#[tokio::test]
async fn a_site_that_is_silent_for_the_whole_time_is_unreachable() {
    let site = TestServer::start(|_| vec![ServerAction::Wait]).await;
    let outcome = crawl_with(&site, Policy { max_duration: MS(100), ..policy() }).await;
    assert_eq!((outcome.kind, outcome.trouble), (OutcomeKind::Unreachable, Some(Trouble::TimedOut)));
    assert!(outcome.message.ends_with("no answer within 100ms"), "{}", outcome.message);
}

#[tokio::test]
async fn a_stopped_crawl_has_no_outcome() {
    let site =
        TestServer::start(|path| if path == "/robots.txt" { status(404) } else { vec![ServerAction::Wait] }).await;
    // Spawn the crawl as a session does, which requires that the crawl's future is `Send`.
    let (stop, crawl) = TestCrawl::of(&site).spawn();
    site.wait_for("/").await;
    let asked = Instant::now();
    stop.cancel();
    assert!(matches!(crawl.await.unwrap(), CrawlEnd::Stopped(_)));
    assert!(asked.elapsed() < MS(500), "{:?}", asked.elapsed());
}

#[tokio::test]
async fn a_submitted_name_is_settled_first() {
    let site = TestServer::start(|path| chain(path, 2)).await;
    let outcome = TestCrawl::named(&site.addr.to_string()).outcome().await;
    assert_eq!((outcome.kind, outcome.pages, outcome.origin), (OutcomeKind::Complete, 2, Some(site.origin())));

    let outcome = TestCrawl::named("no such host").outcome().await;
    assert_eq!((outcome.kind, outcome.origin), (OutcomeKind::Unreachable, None));
    assert!(outcome.message.contains("no such host"), "{}", outcome.message);
}

#[tokio::test]
async fn an_https_site_is_crawled_and_an_unknown_certificate_is_not_trusted() {
    let certificate = TestCertificate::new();
    let server = TestServer::tls(&certificate, |seen| {
        html(if seen.head.starts_with("GET / ") { "<a href=/robots.txt>" } else { "" })
    })
    .await;
    let crawl = TestCrawl::at(&format!("https://{}", server.addr));
    let trusting = TestCrawl::at(&crawl.job.name).context(certificate.trusting());
    let outcome = trusting.outcome().await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 2, 0), "{}", outcome.message);
    let connections: Vec<usize> = server.requests().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 0, 0]);

    let outcome = crawl.outcome().await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Unreachable, 0));
    assert!(outcome.message.contains("certificate"), "{}", outcome.message);
}
