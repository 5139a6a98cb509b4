//! Tests malicious or badly broken sites. A crawl of such a site takes limited time and little
//! memory, its outcome contains the reason, and other crawls are not affected.

use super::*;

/// Short time limits, so that tests are fast.
pub(super) const QUICK: Timeouts = Timeouts {
    connect: Duration::from_millis(300),
    first_byte: Duration::from_millis(400),
    total: Duration::from_millis(1500),
    slow_after: Duration::from_millis(300),
};
/// More bytes than the buffers of two sockets can hold.
const BUFFERS: usize = 16 << 20;

async fn quick(site: &TestServer, policy: Policy) -> Outcome {
    quick_of(TestCrawl::of(site).policy(policy)).await
}

/// Runs a crawl with short time limits, and checks that the crawl ends in time.
pub(super) async fn quick_of(crawl: TestCrawl) -> Outcome {
    ends_in_time(TestCrawl { timeouts: QUICK, ..crawl }).await
}

/// Runs a crawl, and checks that the crawl ends in time.
pub(super) async fn ends_in_time(crawl: TestCrawl) -> Outcome {
    let started = Instant::now();
    let outcome = crawl.outcome().await;
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    outcome
}

/// A site whose server performs these actions for `/bad`. The start page links to `/bad` and
/// `/after`.
async fn with_bad_page(acts: Vec<ServerAction>) -> TestServer {
    TestServer::start(move |path| match path {
        "/" => html("<a href=/bad><a href=/after>"),
        "/bad" => acts.clone(),
        "/after" => html("after"),
        _ => status(404),
    })
    .await
}

/// Crawls a site whose server performs these actions for `/bad`, and checks that this causes the
/// crawl's only error. Returns the error's message and the site.
async fn error_of(acts: Vec<ServerAction>) -> (String, TestServer) {
    let site = with_bad_page(acts).await;
    let outcome = quick(&site, policy()).await;
    assert_eq!((outcome.pages, outcome.errors), (2, 1), "{}", outcome.message);
    assert!(outcome.bytes < MAX_PAGE_BYTES + (1 << 20), "{}", outcome.bytes);
    let error = outcome.message.strip_prefix(&format!("{}/bad: ", site.origin())).unwrap_or(&outcome.message);
    (error.to_owned(), site)
}

pub(super) const HTML: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n";

#[tokio::test]
async fn a_body_without_end_is_cut() {
    let endless = vec![send(format!("{HTML}\r\n")), ServerAction::Endless(vec![b'x'; 64 << 10])];
    let (error, site) = error_of(endless).await;
    assert_eq!(error, "is larger than 5 MiB");
    assert!(site.sent_bytes() < BUFFERS, "{}", site.sent_bytes());
    let chunks = vec![
        send(format!("{HTML}transfer-encoding: chunked\r\n\r\n")),
        ServerAction::Endless([&b"8000\r\n"[..], &[b'x'; 0x8000], b"\r\n"].concat()),
    ];
    let (error, site) = error_of(chunks).await;
    assert_eq!(error, "is larger than 5 MiB");
    assert!(site.sent_bytes() < BUFFERS, "{}", site.sent_bytes());
}

#[tokio::test]
async fn a_header_without_end_or_too_large_is_refused() {
    let field = |size: usize| format!("x-abc: {}\r\n", "v".repeat(size));
    let too_large = "the header has more than 64 KiB, or more than 100 fields";
    for header in [field(70 << 10), field(700).repeat(100), field(1).repeat(101)] {
        let (error, _) = error_of(vec![send(format!("{HTML}{header}content-length: 0\r\n\r\n"))]).await;
        assert_eq!(error, too_large);
    }
    for endless in [field(100), "v".repeat(1000)] {
        let (error, site) =
            error_of(vec![send(format!("{HTML}x-def: ")), ServerAction::Endless(endless.into_bytes())]).await;
        assert_eq!(error, too_large);
        assert!(site.sent_bytes() < BUFFERS, "{}", site.sent_bytes());
    }
    let fits = field(600).repeat(96);
    let site = with_bad_page(vec![send(format!("{HTML}{fits}content-length: 0\r\n\r\n"))]).await;
    let outcome = quick(&site, policy()).await;
    assert_eq!((outcome.pages, outcome.errors), (3, 0), "{}", outcome.message);
}

#[tokio::test]
async fn a_server_that_sends_too_slowly_is_abandoned() {
    let (error, _) = error_of(vec![send("HTTP/1.1 200 OK\r\nx: "), ServerAction::Drip(MS(20), b"v".to_vec())]).await;
    assert_eq!(error, "no answer within 400ms");
    let (error, _) = error_of(vec![send(format!("{HTML}\r\n")), ServerAction::Drip(MS(20), b"v".to_vec())]).await;
    assert_eq!(error, "the body arrives slower than 1024 bytes a second");
    let (error, _) = error_of(vec![send(format!("{HTML}content-length: 9\r\n\r\n")), ServerAction::Wait]).await;
    assert_eq!(error, "the body arrives slower than 1024 bytes a second");
    // A body that arrives fast enough, but never ends.
    let (error, _) = error_of(vec![send(format!("{HTML}\r\n")), ServerAction::Drip(MS(20), vec![b'v'; 200])]).await;
    assert_eq!(error, "no end of the answer within 1.5s");
}

#[tokio::test]
async fn a_slow_body_that_is_fast_enough_is_received() {
    let beginning = format!("{HTML}content-length: 1600\r\n\r\n{}", "v".repeat(800));
    // The second half is sent while the first half alone still keeps the average above 1 KiB per
    // second.
    let rest = ServerAction::Send(vec![b'v'; 800]);
    let site = with_bad_page(vec![send(&beginning), ServerAction::Pause(MS(500)), rest]).await;
    let outcome = quick(&site, policy()).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 3, 0), "{}", outcome.message);
}

#[tokio::test]
async fn endless_early_hints_time_out() {
    let (error, _) =
        error_of(vec![ServerAction::Endless(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n".to_vec())]).await;
    assert_eq!(error, "no answer within 400ms");
    let (error, _) = error_of(vec![ServerAction::Drip(MS(20), b"HTTP/1.1 100 Continue\r\n\r\n".to_vec())]).await;
    assert_eq!(error, "no answer within 400ms");
}

#[tokio::test]
async fn a_connection_that_breaks_during_a_body_is_an_error() {
    let beginning = send(format!("{HTML}content-length: 100000\r\n\r\n<a href=/after>"));
    let (error, _) = error_of(vec![beginning.clone(), ServerAction::Reset]).await;
    assert!(error.contains("reset") || error.contains("end of file"), "{error}");
    let (error, _) = error_of(vec![beginning, ServerAction::Close]).await;
    assert!(error.contains("end of file"), "{error}");
    let chunk = send(format!("{HTML}transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"));
    let (error, _) = error_of(vec![chunk.clone(), ServerAction::Close]).await;
    assert!(!error.is_empty(), "{error}");
    let (error, _) = error_of(vec![chunk, send("ffffffffffffffffff\r\n"), ServerAction::Wait]).await;
    assert!(!error.starts_with("no "), "{error}");
}

#[tokio::test]
async fn a_wrong_content_length_breaks_at_most_one_page() {
    let (error, _) =
        error_of(vec![send(format!("{HTML}content-length: 50\r\n\r\ntoo short")), ServerAction::Close]).await;
    assert!(error.contains("end of file"), "{error}");
    let (error, _) = error_of(vec![send(format!("{HTML}content-length: 3\r\ncontent-length: 4\r\n\r\nabcd"))]).await;
    assert!(!error.is_empty(), "{error}");
    let (error, _) = error_of(vec![send(format!("{HTML}content-length: -3\r\n\r\nabcd"))]).await;
    assert!(!error.is_empty(), "{error}");
    // Bytes after the declared length of a body must not be read as the response to the next
    // request.
    let longer = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 5\r\n\r\n<html";
    let smuggled =
        format!("{longer}>HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 17\r\n\r\n<a href=/smuggled>");
    let site = with_bad_page(vec![send(&smuggled)]).await;
    let outcome = quick(&site, policy()).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 3, 0), "{}", outcome.message);
    assert!(site.paths().iter().all(|path| path != "/smuggled"));
}

#[tokio::test]
async fn what_is_not_http_is_an_error() {
    for rubbish in ["SSH-2.0-OpenSSH_9.6\r\n", "\x16\x03\x01\x02", "HTTP/9.9 200 OK\r\n\r\n", "HTTP/1.1 999999\r\n\r\n"]
    {
        let (error, _) = error_of(vec![send(rubbish), ServerAction::Close]).await;
        assert!(!error.is_empty() && error.len() < 200, "{error}");
    }
}

#[tokio::test]
async fn a_robots_txt_of_any_size_and_kind_is_read_in_bounded_time() {
    let rules = "User-agent: *\r\nDisallow: /private\r\n";
    let filler = "# nothing to see\r\n".repeat(1000).into_bytes();
    let endless = vec![
        send(format!("HTTP/1.1 200 OK\r\ncontent-length: 52428800\r\n\r\n{rules}")),
        ServerAction::Endless(filler),
    ];
    let html_page =
        html("<!doctype html><html><head><title>Welcome</title></head><body><p>Disallow: /</p></body></html>");
    let broken =
        vec![send("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n"), ServerAction::Send(b"\xff\xfe\0D\0i\0s".to_vec())];
    for (robots, expected) in [(endless, 2), (html_page, 3), (broken, 3)] {
        let site = TestServer::start(move |path| match path {
            "/robots.txt" => robots.clone(),
            "/" => html("<a href=/private><a href=/open>"),
            _ => html("a page"),
        })
        .await;
        let outcome = quick(&site, policy()).await;
        assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, expected), "{}", outcome.message);
        assert!(site.sent_bytes() < BUFFERS, "{}", site.sent_bytes());
    }
    let dribble = vec![send("HTTP/1.1 200 OK\r\n\r\n"), ServerAction::Drip(MS(20), b"#".to_vec())];
    let site = TestServer::start(move |_| dribble.clone()).await;
    let outcome = quick(&site, policy()).await;
    assert_eq!(outcome.kind, OutcomeKind::Blocked(Blocker::Robots));
    assert!(
        outcome.message.ends_with("/robots.txt: the body arrives slower than 1024 bytes a second"),
        "{}",
        outcome.message
    );
}

#[tokio::test]
async fn sitemaps_that_are_bombs_or_list_each_other_cost_little() {
    let bomb = gzip(&vec![b' '; 100 << 20]);
    let index: String = (0..1000).map(|number| format!("<sitemap><loc>/index-{number}.xml</loc></sitemap>")).collect();
    let site = TestServer::start(move |path| match path {
        "/robots.txt" => {
            html("Sitemap: /file.xml.gz\nSitemap: /encoded.xml\nSitemap: /index-0.xml\nSitemap: /endless.xml\n")
        }
        "/file.xml.gz" => answer(200, "", &bomb),
        "/encoded.xml" => answer(200, "content-encoding: gzip\r\n", &bomb),
        "/endless.xml" => {
            vec![send("HTTP/1.1 200 OK\r\n\r\n<urlset><url><loc>"), ServerAction::Endless(vec![b'x'; 4096])]
        }
        "/" => html("a page"),
        _ => html(format!("<sitemapindex>{index}</sitemapindex>")),
    })
    .await;
    let outcome = quick(&site, policy()).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Truncated(Budget::Pages), 1), "{}", outcome.message);
    assert!(site.requests().len() < 60, "{}", site.requests().len());
    let error = format!("{}/encoded.xml: the gzip body expands more than 100 times", site.origin());
    assert_eq!(outcome.message, error);
}

#[tokio::test]
async fn a_page_of_a_million_links_is_cut_at_the_limit() {
    let links: String = (0..1_000_000).map(|number| format!("<a href=/{number}>")).collect();
    let site = TestServer::start(move |path| match path {
        "/" => html(&links),
        "/robots.txt" => status(404),
        _ => html("a page"),
    })
    .await;
    let outcome = quick(&site, Policy { max_pages: 5, ..policy() }).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Truncated(Budget::Pages), 5, 1));
    assert_eq!(outcome.message, format!("{}/: is larger than 5 MiB", site.origin()));
}

#[tokio::test]
async fn invalid_bytes_do_not_hide_the_links_around_them() {
    let rubbish: Vec<u8> = (0..=255).cycle().take(100_000).filter(|byte| *byte != b'<').collect();
    let page = [&b"<p>\xff\xfe\xc3\x28<a href=/one>\xf0\x9f"[..], b"<!--", &rubbish, b"--><a href='/tw\xf6'>"].concat();
    let site = TestServer::start(move |path| match path {
        "/" => html(&page),
        "/robots.txt" => status(404),
        _ => html("a page"),
    })
    .await;
    let outcome = quick(&site, policy()).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 3, 0), "{}", outcome.message);
}

#[tokio::test]
async fn paths_that_go_round_in_circles_are_bounded() {
    let site = TestServer::start(|path| match path {
        "/robots.txt" => status(404),
        _ => html("<a href=a/><a href=b/><a href=../><a href=?x=1>"),
    })
    .await;
    let outcome = quick(&site, Policy { max_depth: 8, max_pages: 300, ..policy() }).await;
    assert!(outcome.trapped > 0 && outcome.pages <= 300, "{outcome:?}");
    assert!(matches!(outcome.kind, OutcomeKind::Truncated(Budget::Depth | Budget::Pages)), "{outcome:?}");
}

#[tokio::test]
async fn impossible_host_names_are_refused_before_any_query() {
    let long = format!("{}.example", "x".repeat(300));
    let labels = format!("{}example", "abc.".repeat(80));
    for host in [long, labels] {
        let outcome = TestCrawl::named(&host).outcome().await;
        assert_eq!(outcome.kind, OutcomeKind::Unreachable, "{}", outcome.message);
        let page = format!("<a href=http://{host}/><a href=/away>");
        let target = format!("http://{host}/");
        let site = TestServer::start(move |path| match path {
            "/robots.txt" => status(404),
            "/" => html(&page),
            _ => redirect(&target),
        })
        .await;
        let outcome = quick(&site, policy()).await;
        assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 1, 0), "{}", outcome.message);
        let robots = format!("http://{host}/robots.txt");
        let site = TestServer::start(move |_| redirect(&robots)).await;
        let outcome = quick(&site, policy()).await;
        assert!(outcome.pages == 0 && outcome.message.len() < 1000, "{outcome:?}");
    }
}

#[tokio::test]
async fn timeouts_of_resolving_and_connecting_are_different_errors() {
    let names = TestNames::answering(|_, _| DnsAnswer::Silent).await;
    let silent = TestCrawl::at("http://silent.example:80").context(names.context(&["127.0.0.1/32"]));
    let outcome = quick_of(silent).await;
    assert_eq!(outcome.kind, OutcomeKind::Unreachable);
    assert!(outcome.message.ends_with("no address within 300ms"), "{}", outcome.message);
    // This server accepts the connection, but does not answer the TLS handshake.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let outcome = quick_of(TestCrawl::at(&format!("https://{}", silent.local_addr().unwrap()))).await;
    assert!(outcome.message.ends_with("no connection within 300ms"), "{}", outcome.message);
}

#[tokio::test]
async fn a_neighbour_is_crawled_whole_while_hostile_crawls_are_under_way() {
    let body = send(format!("{HTML}\r\n"));
    let hostile = [
        vec![send("HTTP/1.1 200 OK\r\nx: "), ServerAction::Drip(MS(5), b"v".to_vec())],
        vec![body.clone(), ServerAction::Drip(MS(5), vec![b'v'; 100])],
        vec![ServerAction::Endless(b"HTTP/1.1 100 Continue\r\n\r\n".to_vec())],
        vec![body, ServerAction::Drip(MS(1), b"<a href=/x>".repeat(100))],
        vec![ServerAction::Wait],
    ];
    let neighbour = TestServer::start(|path| chain(path, 50)).await;
    let neighbour = TestCrawl::of(&neighbour);
    let mut crawls = Vec::new();
    for acts in hostile {
        let site = TestServer::start(move |path| if path == "/robots.txt" { status(404) } else { acts.clone() }).await;
        let (context, robots) = (Arc::clone(&neighbour.context), Arc::clone(&neighbour.robots));
        let crawl = TestCrawl { context, robots, stop: neighbour.stop.clone(), ..TestCrawl::of(&site) };
        crawls.push((tokio::spawn(crawl.run()), site));
    }
    for (_, site) in &crawls {
        site.until(|seen| seen.len() >= 2).await;
    }
    let stop = neighbour.stop.clone();
    let outcome = neighbour.outcome().await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 50, 0), "{}", outcome.message);
    for (crawl, site) in &crawls {
        assert!(!crawl.is_finished(), "{:?}", site.paths());
    }
    stop.cancel();
    for (crawl, _) in crawls {
        assert!(matches!(crawl.await.unwrap(), CrawlEnd::Stopped(_)));
    }
}
