//! Tests that a crawl sends fewer requests while the agent is disconnected.

use super::*;

const HALF_A_SECOND: prost_types::Duration = prost_types::Duration { seconds: 0, nanos: 500_000_000 };

#[tokio::test]
async fn a_broken_session_doubles_the_interval() {
    let (mut scheduler, _agent, mut session) = connected().await;
    let server = TestServer::start(|path| match path {
        "/robots.txt" => status(404),
        _ => html("<a href=/a>a</a><a href=/b>b</a><a href=/c>c</a>"),
    })
    .await;
    let mut order = crawl_order(&server);
    order.site.as_mut().unwrap().origin = format!("http://{}", server.addr);
    order.policy.as_mut().unwrap().request_interval = Some(HALF_A_SECOND);
    session.send(Down::Crawl(order)).await;
    begins(&mut session, &server).await;
    drop(session);
    // The agent connects again, but gets no welcome.
    let (_next, register) = scheduler.session().await;
    assert_eq!(register.held.len(), 1, "the crawl goes on");
    let four = server.until(|seen| seen.len() >= 4);
    tokio::time::timeout(Duration::from_secs(20), four).await.expect("robots.txt and three pages");
    let asked = server.requests();
    // The request that was waiting when the session broke was still sent after the normal interval.
    // Later requests are sent after twice that interval. Allow for a request that arrives slightly
    // late.
    let apart = asked[3].at.duration_since(asked[2].at);
    assert!(apart >= Duration::from_millis(800), "{apart:?}");
}
