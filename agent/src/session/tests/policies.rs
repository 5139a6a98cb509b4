//! Tests how the policy of a crawl order affects requests and the agent's disk.

use super::*;

const STUDY: &str = "https://example.org/study";

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

fn ordered(server: &TestServer, change: impl FnOnce(&mut CrawlPolicy)) -> CrawlOrder {
    let mut order = crawl_order(server);
    change(order.policy.as_mut().unwrap());
    order
}

#[tokio::test]
async fn a_batchs_contact_url_and_product_name_are_sent_to_its_sites_only() {
    let (_scheduler, _agent, mut session) = connected().await;
    let cases = [
        (None, None, format!(" (+{CONTACT})\r\n")),
        (None, Some(STUDY), format!(" (+{STUDY})\r\n")),
        (Some("StudyBot/1.2"), None, format!("user-agent: StudyBot/1.2 (+{CONTACT}) landfall-agent/")),
        (Some("StudyBot/1.2"), Some(STUDY), format!("user-agent: StudyBot/1.2 (+{STUDY}) landfall-agent/")),
    ];
    for (task_id, (user_agent, contact_url, seen)) in (5..).zip(cases) {
        let server = page_server().await;
        let order = ordered(&server, |policy| {
            policy.user_agent = user_agent.map(str::to_owned);
            policy.contact_url = contact_url.map(str::to_owned);
        });
        session.send(Down::Crawl(CrawlOrder { task_id, ..order })).await;
        assert_eq!(outcome(&mut session).await.pages, 1);
        // Header names are not case-sensitive.
        let heads: Vec<String> =
            server.requests().iter().map(|seen| seen.head.replace("User-Agent:", "user-agent:")).collect();
        assert!(heads.len() >= 2, "robots.txt and a page: {heads:?}");
        assert!(heads.iter().all(|head| head.contains(&seen)), "{heads:?}");
        acknowledge(&session, task_id).await;
    }
    // The prober uses the default contact URL, whatever the batch's policy is.
    let server = page_server().await;
    session.send(Down::Measure(measure_order(&server))).await;
    assert!(matches!(session.next().await, Some(Up::Measurement(_))));
    assert!(server.requests().iter().all(|seen| seen.head.contains(CONTACT)));
}

#[tokio::test]
async fn pages_are_not_stored_if_the_batch_forbids_it() {
    let mut scheduler = TestScheduler::start(None).await;
    let folder = tempfile::tempdir().unwrap();
    let _agent = storing(&scheduler, folder.path(), 0);
    let server = page_server().await;
    let (mut session, _) = welcomed(&mut scheduler, Vec::new()).await;
    session.send(Down::Crawl(ordered(&server, |policy| policy.store = Some(false)))).await;
    let outcome = outcome(&mut session).await;
    assert_eq!((outcome.kind(), outcome.pages), (OutcomeKind::Complete, 1));
    assert_eq!(stored_lines(&folder.path().join("pages")), [], "otherwise they are stored");
}

#[tokio::test]
async fn an_order_with_a_longer_interval_for_large_sites_is_handed_back() {
    let (_scheduler, _agent, mut session) = connected().await;
    let server = page_server().await;
    session.send(Down::Crawl(ordered(&server, |policy| policy.shortest_interval = seconds(1)))).await;
    assert_eq!(released(&mut session).await, (LEASE.task_id, LEASE.token));
    assert_eq!(server.requests().len(), 0);
}
