//! Tests that a crawl connects only to public and allowed addresses, however a URL is spelled and
//! wherever it comes from. Also tests that a crawl uses no proxy, cookie or file.

use std::net::{IpAddr, Ipv6Addr};

use super::*;
use crate::net::origin::Origin;

/// Spellings of `127.0.0.1` in URLs.
const LOOPBACK: &str = "127.0.0.1 127.1 127.0.1 2130706433 0x7f000001 0x7F.0.0.0x1 0177.0.0.1 017700000001 127.0.0.1. 127.0.0.01 \
    \u{ff11}27.0.0.1 %31%32%37.0.0.1";
/// IPv6 addresses that contain `127.0.0.1`, and other addresses that lead to this machine.
const DISGUISED: &str = "[::ffff:127.0.0.1] [::ffff:7f00:1] [0:0:0:0:0:ffff:127.0.0.1] [::127.0.0.1] [::ffff:0:127.0.0.1] \
    [64:ff9b::127.0.0.1] [2002:7f00:1::] [2001:0:7f00:1::80ff:fffe] [::] 0.0.0.0";

/// Two servers with the same port, one on the IPv4 and one on the IPv6 loopback address. The second
/// is `None` if this machine has no IPv6.
async fn secrets() -> (TestServer, Option<TestServer>) {
    let secret = TestServer::start(|_| html("secret")).await;
    let sixth = TestServer::start_at((Ipv6Addr::LOCALHOST, secret.port()), |_| html("secret")).await;
    (secret, sixth.ok())
}

fn connections((secret, sixth): &(TestServer, Option<TestServer>)) -> usize {
    secret.connections() + sixth.as_ref().map_or(0, TestServer::connections)
}

/// Crawls a site that was submitted as `name` and whose origin is not known yet.
async fn crawl_name(name: &str, allow_net: &str) -> Outcome {
    TestCrawl::named(name).context(context(&[allow_net])).outcome().await
}

#[tokio::test]
async fn no_spelling_of_a_private_address_is_connected() {
    let secrets = secrets().await;
    let port = secrets.0.port();
    for host in LOOPBACK.split(' ').chain(DISGUISED.split(' ')).chain(["[::1]", "[0::0:1]"]) {
        let name = format!("http://{host}:{port}");
        let outcome = crawl_name(&name, "127.0.0.2/32").await;
        assert!(matches!(outcome.kind, OutcomeKind::Blocked(_) | OutcomeKind::Unreachable), "{name}: {outcome:?}");
        // An origin that is already known must be vetted too.
        if name.parse::<Origin>().is_ok() {
            let outcome = TestCrawl::at(&name).context(context(&["127.0.0.2/32"])).outcome().await;
            assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Blocked(Blocker::Guard), 0), "{host}: {outcome:?}");
            assert!(outcome.message.contains("the guard refuses"), "{host}: {}", outcome.message);
        }
    }
    assert_eq!(connections(&secrets), 0);
}

#[tokio::test]
async fn the_same_spellings_are_connected_where_the_operator_allows_it() {
    let secrets = secrets().await;
    for host in LOOPBACK.split(' ') {
        let before = connections(&secrets);
        let name = format!("http://{host}:{}", secrets.0.port());
        let outcome = crawl_name(&name, "127.0.0.1/32").await;
        assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 1), "{name}: {}", outcome.message);
        assert!(connections(&secrets) > before, "{name}");
    }
    // Some of these addresses contain `127.0.0.1`, but `127.0.0.1/32` allows none of them.
    for host in DISGUISED.split(' ') {
        let before = connections(&secrets);
        crawl_name(&format!("http://{host}:{}", secrets.0.port()), "127.0.0.1/32").await;
        assert_eq!(connections(&secrets), before, "{host}");
    }
}

#[tokio::test]
async fn no_redirect_is_followed_to_a_private_address() {
    let secrets = secrets().await;
    let port = secrets.0.port();
    for host in LOOPBACK.split(' ').chain(DISGUISED.split(' ')).chain(["[::1]", "localhost", "LOCALHOST."]) {
        let target = format!("http://{host}:{port}/robots.txt");
        let page = format!("<a href=http://{host}:{port}/><a href=/away><a href=/chain>");
        let site = TestServer::start_at(([127, 0, 0, 2], 0), move |path| match path {
            "/robots.txt" => redirect("/rules"),
            "/rules" => redirect(&target),
            "/" => html(&page),
            "/chain" => redirect("/away"),
            _ => redirect(&target),
        })
        .await
        .unwrap();
        // robots.txt redirects to `host`, which the guard refuses. A robots.txt that cannot be read
        // forbids the whole site.
        let outcome = TestCrawl::of(&site).context(context(&["127.0.0.2/32"])).outcome().await;
        let refused = outcome.kind == OutcomeKind::Blocked(Blocker::Robots);
        // If the spelling is an invalid URL, robots.txt counts as missing, and the start page is
        // the only page, because its link is invalid too.
        assert!(refused || outcome.pages == 1, "{host}: {outcome:?}");
        if refused {
            assert!(outcome.message.contains("the guard refuses"), "{host}: {}", outcome.message);
            assert_eq!(site.paths(), ["/robots.txt", "/rules"], "{host}");
        }
    }
    assert_eq!(connections(&secrets), 0);
}

#[tokio::test]
async fn no_name_is_connected_at_a_private_address() {
    let names = TestNames::answering(|name, _| {
        let addr: IpAddr = match name {
            "four.example" => "127.0.0.1",
            "six.example" => "::1",
            "mapped.example" => "::ffff:127.0.0.1",
            "translated.example" => "64:ff9b::7f00:1",
            "sixth-to-fourth.example" => "2002:7f00:1::",
            "any.example" => "0.0.0.0",
            "metadata.example" => "169.254.169.254",
            "carrier.example" => "100.64.0.1",
            _ => "10.0.0.1",
        }
        .parse()
        .unwrap();
        DnsAnswer::At(vec![addr], 60)
    })
    .await;
    let secrets = secrets().await;
    for name in ["four", "six", "mapped", "translated", "sixth-to-fourth", "any", "metadata", "carrier", "private"] {
        let origin = format!("http://{name}.example:{}", secrets.0.port());
        for crawl in [TestCrawl::named(&format!("{name}.example")), TestCrawl::at(&origin)] {
            let outcome = crawl.context(names.context(&["127.0.0.2/32"])).outcome().await;
            assert_eq!(outcome.kind, OutcomeKind::Blocked(Blocker::Guard), "{name}: {}", outcome.message);
            assert!(outcome.message.contains("the guard refuses"), "{name}: {}", outcome.message);
        }
    }
    assert_eq!(connections(&secrets), 0);
}

#[tokio::test]
async fn only_the_permitted_addresses_of_a_name_are_connected() {
    let secret = TestServer::start(|_| html("secret")).await;
    let open = TestServer::start_at(([127, 0, 0, 2], secret.port()), |_| html("open")).await.unwrap();
    let both = vec![IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]), Ipv6Addr::LOCALHOST.into()];
    let names = TestNames::answering(move |_, _| DnsAnswer::At(both.clone(), 60)).await;
    let host = format!("both.example:{}", secret.port());
    let outcome = TestCrawl::at(&format!("http://{host}")).context(names.context(&["127.0.0.2/32"])).outcome().await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 1), "{}", outcome.message);
    assert_eq!(secret.connections(), 0);
    assert!(open.connections() > 0);
    assert!(open.requests().iter().all(|request| request.header("host") == host));
}

#[tokio::test]
async fn a_name_that_moves_to_a_private_address_is_vetted_again() {
    let secret = TestServer::start(|_| html("secret")).await;
    // The server closes every connection, so that the crawl resolves the name again for each
    // request.
    let answer = |path: &str| {
        let mut acts = if path == "/robots.txt" { status(404) } else { html("<a href=/next>") };
        acts.push(ServerAction::Close);
        acts
    };
    let open = TestServer::start_at(([127, 0, 0, 2], secret.port()), answer).await.unwrap();
    // The name resolves to an allowed address in the first three answers, and then to a private
    // address. The TTL is zero.
    let names = TestNames::answering(|_, before| {
        let host = if before < 3 { 2 } else { 1 };
        DnsAnswer::At(vec![[127, 0, 0, host].into()], 0)
    })
    .await;
    let origin = format!("http://rebinding.example:{}", secret.port());
    let outcome = TestCrawl::at(&origin).context(names.context(&["127.0.0.2/32"])).outcome().await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 1, 1));
    assert!(outcome.message.contains("/next: the guard refuses 127.0.0.1"), "{}", outcome.message);
    assert!(names.queries("rebinding.example") >= 3);
    assert_eq!((secret.connections(), open.connections()), (0, 2));
}

#[tokio::test]
async fn sitemaps_of_other_origins_are_not_requested() {
    let secrets = secrets().await;
    let port = secrets.0.port();
    let spelled = LOOPBACK.split(' ').chain(DISGUISED.split(' ')).map(|host| format!("http://{host}:{port}/s.xml"));
    let spelled: Vec<String> = spelled.collect();
    let robots: String = spelled.iter().map(|url| format!("Sitemap: {url}\n")).collect();
    let listed: String = spelled.iter().map(|url| format!("<url><loc>{url}</loc></url>")).collect();
    let indexed: String = spelled.iter().map(|url| format!("<sitemap><loc>{url}</loc></sitemap>")).collect();
    let site = TestServer::start_at(([127, 0, 0, 2], 0), move |path| match path {
        "/robots.txt" => page("text/plain", format!("{robots}Sitemap: /own.xml\nSitemap: /index.xml\n")),
        "/own.xml" => page("text/xml", format!("<urlset>{listed}</urlset>")),
        "/index.xml" => page("text/xml", format!("<sitemapindex>{indexed}</sitemapindex>")),
        "/" => html("a page"),
        _ => status(404),
    })
    .await
    .unwrap();
    let outcome = TestCrawl::of(&site).context(context(&["127.0.0.0/8"])).outcome().await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 1, 0), "{}", outcome.message);
    assert_eq!(site.paths(), ["/robots.txt", "/own.xml", "/index.xml", "/"]);
    assert_eq!(connections(&secrets), 0);
}

#[tokio::test]
async fn only_http_urls_are_requested() {
    for name in ["file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1:70/", "data:text/html,x", "unix:/x"] {
        let outcome = crawl_name(name, "127.0.0.1/32").await;
        assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Unreachable, 0), "{name}: {}", outcome.message);
    }
    let site = TestServer::start(|path| match path {
        "/robots.txt" => redirect("file:///etc/passwd"),
        "/" => html("<a href=file:///etc/passwd><a href=ftp://127.0.0.1/><a href=/moved><a href='javascript:1'>"),
        "/moved" => redirect("file:///etc/passwd"),
        _ => status(404),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages, outcome.errors), (OutcomeKind::Complete, 1, 0), "{}", outcome.message);
    assert_eq!(site.paths(), ["/robots.txt", "/", "/moved"]);
}

#[tokio::test]
async fn no_cookie_and_no_referer_is_sent() {
    let headers = "set-cookie: id=1; path=/\r\nset-cookie: site=2\r\ncontent-type: text/html\r\n";
    let site = TestServer::start(|path| answer(200, headers, if path == "/" { "<a href=/next>" } else { "" })).await;
    crawl(&site).await;
    assert_eq!(site.requests().len(), 3);
    for seen in site.requests() {
        let head = seen.head.to_lowercase();
        assert!(!head.contains("cookie") && !head.contains("referer"), "{head}");
    }
}
