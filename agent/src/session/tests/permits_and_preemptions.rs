//! Tests that a crawl requests a permit for an address before it connects to the address, that a
//! preempted crawl stops and another agent resumes it, that a lease whose site requires a pause is
//! returned, and that a crawl sends fewer requests while the agent is disconnected.

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

/// A site with two pages. The response for the second page never arrives.
async fn half_a_site() -> TestServer {
    TestServer::start(|path| match path {
        "/robots.txt" => status(404),
        "/next" => vec![ServerAction::Wait],
        _ => html("<a href=/next>on</a>"),
    })
    .await
}

/// Waits until a crawl has requested the second page.
async fn half_way(session: &mut TestSession, server: &TestServer) {
    session.permit().await;
    server.wait_for("/next").await;
}

fn preempt(token: i64) -> Down {
    let reason = "another agent would end it in 3 s, here it goes on for about 40 s".to_owned();
    Down::Preempt(PreemptOrder { task_id: LEASE.task_id, token, history: LEASE.history, reason })
}

#[tokio::test]
async fn a_preempted_lease_is_released_after_its_checkpoint_and_another_agent_resumes() {
    let (mut scheduler, _agent, mut session) = connected().await;
    let server = half_a_site().await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    half_way(&mut session, &server).await;
    // The agent must ignore the first order, because the agent does not hold the order's lease. The
    // third order repeats the second order.
    session.send(preempt(LEASE.token - 1)).await;
    session.send(preempt(LEASE.token)).await;
    session.send(preempt(LEASE.token)).await;
    let Some(Up::Checkpoint(checkpoint)) = session.next_but_heartbeats().await else { panic!("no checkpoint") };
    assert_eq!((checkpoint.task_id, checkpoint.token, checkpoint.pages), (LEASE.task_id, LEASE.token, 1));
    let Some(Up::Release(release)) = session.next_but_heartbeats().await else { panic!("no release") };
    assert_eq!((release.task_id, release.token), (LEASE.task_id, LEASE.token));
    assert_eq!((release.crash.as_str(), release.not_before), ("", None));

    // Another agent resumes the crawl without requesting the first page again. The site is the same,
    // but its pages are elsewhere, where both are served.
    let whole = page_server().await;
    let _other = TestAgent::start(&scheduler);
    let (mut other, _) = welcomed(&mut scheduler, Vec::new()).await;
    let site = SiteTarget { origin: format!("http://{}", whole.addr), ..site(&server) };
    let order = crawl_order(&server);
    let order = CrawlOrder { site: Some(site), token: LEASE.token + 1, checkpoint: checkpoint.state, ..order };
    other.send(Down::Crawl(order)).await;
    let outcome = outcome(&mut other).await;
    assert_eq!((outcome.kind(), outcome.pages, outcome.refetched), (OutcomeKind::Complete, 2, 0));
    assert!(!whole.requests().iter().any(|seen| seen.head.starts_with("GET / ")), "it was fetched before");
}

#[tokio::test]
async fn a_crawl_that_ended_before_its_preemption_reports_its_outcome() {
    let (_scheduler, _agent, mut session) = connected().await;
    let server = page_server().await;
    session.send(Down::Crawl(crawl_order(&server))).await;
    let first = outcome(&mut session).await;
    session.send(preempt(LEASE.token)).await;
    acknowledge(&session, first.task_id).await;
    session.send(Down::Crawl(CrawlOrder { task_id: LEASE.task_id + 1, ..crawl_order(&server) })).await;
    let next = outcome(&mut session).await;
    assert_eq!((next.task_id, next.kind()), (LEASE.task_id + 1, OutcomeKind::Complete));
}

#[tokio::test]
async fn a_preempted_crawl_rests_for_an_interval_before_its_release() {
    let (_scheduler, _agent, mut session) = connected().await;
    let server = half_a_site().await;
    let mut order = crawl_order(&server);
    let interval = Duration::from_millis(300);
    if let Some(policy) = &mut order.policy {
        policy.request_interval = Some(interval.try_into().unwrap());
    }
    session.send(Down::Crawl(order)).await;
    half_way(&mut session, &server).await;
    let last = Instant::now();
    session.send(preempt(LEASE.token)).await;
    assert!(matches!(session.next_but_heartbeats().await, Some(Up::Checkpoint(_))));
    assert!(matches!(session.next_but_heartbeats().await, Some(Up::Release(_))));
    // Allow for the time between the request's arrival and the moment when the test noticed it.
    assert!(last.elapsed() > interval / 2, "{:?}", last.elapsed());
}

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
