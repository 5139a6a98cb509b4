//! Tests leases that the scheduler preempts: their crawls stop, and another agent resumes them.

use super::*;

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
    Down::Preempt(PreemptOrder { task_id: LEASE.task_id, token, reason })
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

    // Another agent resumes the crawl without requesting the first page again.
    let whole = page_server().await;
    let _other = TestAgent::start(&scheduler);
    let (mut other, _) = welcomed(&mut scheduler, Vec::new()).await;
    let order = CrawlOrder { token: LEASE.token + 1, checkpoint: checkpoint.state, ..crawl_order(&whole) };
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
