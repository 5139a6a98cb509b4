//! Tests the number of connections that a crawl makes.

use super::hostile::HTML;
use super::*;

/// Number of pages of the site. Without the delay in `crawl::fetch::requests`, one request in
/// thirty would make a new connection.
const PAGES: u32 = 200;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crawl_without_pauses_uses_one_connection() {
    let filler = "text ".repeat(4000);
    let site = TestServer::start(move |path| {
        let next = path[1..].parse::<u32>().unwrap_or(0) + 1;
        let link = if next < PAGES { format!("<a href=/{next}>") } else { String::new() };
        let length = link.len() + 2 * filler.len();
        let head = format!("{HTML}content-length: {length}\r\n\r\n{link}{filler}");
        vec![send(head), ServerAction::Pause(MS(1)), send(&filler)]
    })
    .await;
    let outcome = crawl_with(&site, Policy { max_depth: PAGES, ..policy() }).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, PAGES), "{}", outcome.message);
    // After the first response, the crawler delays each new connection by 5 ms (`ConnectDelay`).
    // The crawler does not make the new connection if the previous one becomes free within this
    // time. On a busy machine the previous connection may become free later, and the crawl then
    // makes another connection.
    assert!(site.connections() <= 3, "{}", site.connections());
}

#[tokio::test]
async fn the_body_of_a_missing_robots_txt_costs_no_connection() {
    let told = |status: &str, more: &str| {
        let half = "text ".repeat(3000);
        let length = 2 * half.len();
        let head = format!("HTTP/1.1 {status}\r\n{more}content-type: text/html\r\ncontent-length: {length}\r\n\r\n");
        vec![send(head), send(&half), ServerAction::Pause(MS(20)), send(&half)]
    };
    let site = TestServer::start(move |path| match path {
        "/robots.txt" => told("301 Moved Permanently", "location: /rules.txt\r\n"),
        "/rules.txt" => told("404 Not Found", ""),
        _ => told("200 OK", ""),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 1), "{}", outcome.message);
    assert_eq!((site.requests().len(), site.connections()), (3, 1));
}

#[tokio::test]
async fn the_slow_body_of_a_missing_robots_txt_is_not_awaited() {
    let began = Instant::now();
    let site = TestServer::start(|path| match path {
        "/robots.txt" => vec![
            send("HTTP/1.1 404 Not Found\r\ncontent-length: 60000\r\n\r\n"),
            ServerAction::Drip(MS(50), b"not here ".to_vec()),
        ],
        _ => html("a page"),
    })
    .await;
    let outcome = crawl(&site).await;
    assert_eq!((outcome.kind, outcome.pages), (OutcomeKind::Complete, 1), "{}", outcome.message);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}
