//! What a site sees of a crawl when nothing is heard of the scheduler any more.

use std::sync::Mutex;
use std::time::Instant;

use super::*;

const HALF_A_SECOND: prost_types::Duration = prost_types::Duration { seconds: 0, nanos: 500_000_000 };

#[tokio::test]
async fn when_the_session_breaks_the_site_is_asked_half_as_often() {
    let mut scheduler = TestScheduler::start(None).await;
    let _agent = TestAgent::start(&scheduler);
    let asked: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let noted = Arc::clone(&asked);
    let server = TestServer::plain(move |seen: &Seen| {
        noted.lock().unwrap().push(Instant::now());
        let page = "<a href=/a>a</a><a href=/b>b</a><a href=/c>c</a>";
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n", page.len());
        let robots = seen.head.contains(" /robots.txt ");
        Reply::After(Duration::ZERO, if robots { status("404 Not Found") } else { head + page })
    })
    .await;
    let (mut session, _) = welcomed(&mut scheduler, Vec::new()).await;
    let mut order = crawl_order(&server);
    order.site.as_mut().unwrap().origin = format!("http://{}", server.addr);
    order.policy.as_mut().unwrap().request_interval = Some(HALF_A_SECOND);
    session.send(Down::Crawl(order)).await;
    begins(&mut session, &server).await;
    drop(session);
    // It asks for another session, and is not welcomed.
    let (_next, register) = scheduler.session().await;
    assert_eq!(register.held.len(), 1, "the crawl goes on");
    let four = async {
        while asked.lock().unwrap().len() < 4 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), four).await.expect("robots.txt and three pages");
    let asked = asked.lock().unwrap();
    // What was on its way when the session broke came as it was to; what came later did not. A request may arrive a little late.
    let apart = asked[3].duration_since(asked[2]);
    assert!(apart >= Duration::from_millis(800), "{apart:?}");
}
