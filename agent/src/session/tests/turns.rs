//! Tests that a crawl requests a permit for an address before it connects to the address.
//! Also tests that the agent returns a lease whose site requires a pause.

use super::*;

/// Waits for the next request for a permit, before which only heartbeats may come.
async fn asked(session: &mut TestSession) -> PermitRequest {
    loop {
        match session.next_or_permit_request().await {
            Some(Up::Permit(request)) => return request,
            Some(Up::Heartbeat(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn no_request_is_sent_before_the_permit_even_if_the_session_breaks() {
    let (mut scheduler, _agent, mut session) = connected().await;
    let server = page_server().await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let first = asked(&mut session).await;
    assert_eq!((first.task_id, first.token, first.address.as_str()), (LEASE.task_id, LEASE.token, "127.0.0.1"));
    session.fail(Status::unavailable("a restart")).await;
    let (mut session, register) = welcomed(&mut scheduler, vec![LEASE]).await;
    assert_eq!(register.held, [LEASE], "the crawl waits");
    let again = asked(&mut session).await;
    assert_eq!(again, first, "it is asked for once more");
    assert_eq!(server.requests().len(), 0);
    // A reply that concerns another address has no effect.
    session.answer(PermitRequest { address: "127.0.0.9".to_owned(), ..again.clone() }, false).await;
    session.answer(again, true).await;
    assert_eq!(outcome(&mut session).await.kind(), OutcomeKind::Complete);
}

#[tokio::test]
async fn a_crawl_that_gets_no_permit_frees_its_slots_and_sends_nothing() {
    let mut scheduler = TestScheduler::start(None).await;
    let agent = TestAgent::start(&scheduler);
    let server = page_server().await;
    let (mut session, _) = scheduler.session().await;
    session.welcome(Duration::from_millis(30), LONG, Vec::new(), CONTACT).await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let request = asked(&mut session).await;
    session.answer(request, false).await;
    loop {
        match session.next().await {
            Some(Up::Heartbeat(beat)) if beat.active_crawls == 0 => break,
            Some(Up::Heartbeat(_)) => {}
            other => panic!("its lease has ended already: {other:?}"),
        }
    }
    agent.stop.cancel();
    assert!(matches!(session.next_but_heartbeats().await, Some(Up::Leave(_))));
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn a_site_that_requires_a_long_pause_is_handed_back_with_it() {
    let (_scheduler, _agent, mut session) = connected().await;
    let server = TestServer::plain(|seen: &SeenRequest| match (seen.method(), seen.path()) {
        ("HEAD", _) => status(200),
        (_, "/robots.txt") => status(404),
        _ => answer(429, "retry-after: 40\r\n", ""),
    })
    .await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let Some(Up::Checkpoint(checkpoint)) = session.next_but_heartbeats().await else { panic!("no checkpoint") };
    assert_eq!(checkpoint.rate_state.map(|rate_state| rate_state.turned_away), Some(1));
    let Some(Up::Release(release)) = session.next_but_heartbeats().await else { panic!("no release") };
    let wish = release.not_before.map(|wish| wish.seconds);
    assert!(wish.is_some_and(|wish| (39..=44).contains(&wish)), "{wish:?}");
    // Another agent that resumes the crawl during the pause also returns the lease, without sending
    // a request.
    let asked = server.requests().len();
    let order = CrawlOrder { token: 3, checkpoint: checkpoint.state, ..crawl_order(&server) };
    session.send(Down::Crawl(order)).await;
    loop {
        match session.next_but_heartbeats().await {
            Some(Up::Checkpoint(_)) => {}
            Some(Up::Release(release)) => break assert!(release.not_before.is_some()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(server.requests().len(), asked);
}
