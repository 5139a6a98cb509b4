//! An order's policy, and its effect on the site and on the agent's disk.

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
async fn a_batchs_contact_url_is_sent_to_its_sites_only() {
    let (_scheduler, _agent, mut session) = connected().await;
    for (task_id, contact_url, seen) in [(5, Some(STUDY), STUDY), (6, None, CONTACT)] {
        let server = page_server().await;
        let order = ordered(&server, |policy| policy.contact_url = contact_url.map(str::to_owned));
        session.send(Down::Crawl(CrawlOrder { task_id, ..order })).await;
        let Some(Up::Outcome(outcome)) = session.next().await else { panic!("no outcome") };
        assert_eq!(outcome.pages, 1);
        let heads: Vec<String> = server.requests().iter().map(|seen| seen.head.to_lowercase()).collect();
        assert!(heads.len() >= 2, "robots.txt and a page: {heads:?}");
        assert!(heads.iter().all(|head| head.contains(&format!(" (+{seen})\r\n"))), "{heads:?}");
        let answer = outcome_ack::Answer::Accepted.into();
        session.send(Down::Outcome(OutcomeAck { task_id, token: LEASE.token, answer, ..Default::default() })).await;
    }
    // And a prober, whatever batch it measures for.
    let server = page_server().await;
    session.send(Down::Measure(measure_order(&server))).await;
    assert!(matches!(session.next().await, Some(Up::Measurement(_))));
    assert!(server.requests().iter().all(|seen| seen.head.contains(CONTACT)));
}

#[tokio::test]
async fn a_batchs_product_name_is_sent_with_either_contact() {
    let (_scheduler, _agent, mut session) = connected().await;
    for (task_id, contact_url, seen) in [(5, Some(STUDY), STUDY), (6, None, CONTACT)] {
        let server = page_server().await;
        let order = ordered(&server, |policy| {
            policy.user_agent = Some("StudyBot/1.2".to_owned());
            policy.contact_url = contact_url.map(str::to_owned);
        });
        session.send(Down::Crawl(CrawlOrder { task_id, ..order })).await;
        let Some(Up::Outcome(outcome)) = session.next().await else { panic!("no outcome") };
        assert_eq!(outcome.pages, 1);
        let named = format!("user-agent: StudyBot/1.2 (+{seen}) landfall-agent/");
        let heads: Vec<String> = server.requests().iter().map(|seen| seen.head.clone()).collect();
        // The spelling of a header's name does not matter.
        assert!(heads.iter().all(|head| head.replace("User-Agent:", "user-agent:").contains(&named)), "{heads:?}");
        let answer = outcome_ack::Answer::Accepted.into();
        session.send(Down::Outcome(OutcomeAck { task_id, token: LEASE.token, answer, ..Default::default() })).await;
    }
}

#[tokio::test]
async fn pages_are_not_stored_if_the_batch_forbids_it() {
    let mut scheduler = TestScheduler::start(None).await;
    let folder = tempfile::tempdir().unwrap();
    let _agent = storing(&scheduler, folder.path(), 0);
    let server = page_server().await;
    let (mut session, _) = welcomed(&mut scheduler, Vec::new()).await;
    session.send(Down::Crawl(ordered(&server, |policy| policy.store = Some(false)))).await;
    let Some(Up::Outcome(outcome)) = session.next().await else { panic!("no outcome") };
    assert_eq!((outcome.kind(), outcome.pages), (OutcomeKind::Complete, 1));
    let files = std::fs::read_dir(folder.path().join("pages")).unwrap().map(|entry| entry.unwrap().path());
    let lines = files.filter(|file| file.extension().is_some_and(|ending| ending == "jsonl"));
    let stored: String = lines.map(|file| std::fs::read_to_string(file).unwrap()).collect();
    assert_eq!(stored, "", "as `what_a_lease_brought_is_stored` has it otherwise");
}

#[tokio::test]
async fn a_site_whose_last_crawl_was_large_gets_the_interval_of_large_sites() {
    let (_scheduler, _agent, mut session) = connected().await;
    let server = page_server().await;
    let order = ordered(&server, |policy| {
        // At this rate the second request would come long after the test's time limit.
        policy.request_interval = seconds(50);
        policy.shortest_interval = seconds(0);
    });
    let origin = format!("http://{}", server.addr);
    let site = Some(SiteTarget { origin, ..site(&server) });
    session.send(Down::Crawl(CrawlOrder { last_pages: Some(100_000), site, ..order })).await;
    session.permit().await;
    let paged = server.until(|seen| seen.iter().any(|seen| seen.head.starts_with("GET / ")));
    tokio::time::timeout(Duration::from_secs(10), paged).await.expect("robots.txt, and at once a page");
    assert!(server.requests().len() >= 2, "that was not the first request");
}

#[tokio::test]
async fn an_order_with_a_longer_interval_for_large_sites_is_handed_back() {
    let (_scheduler, _agent, mut session) = connected().await;
    let server = page_server().await;
    session.send(Down::Crawl(ordered(&server, |policy| policy.shortest_interval = seconds(1)))).await;
    let Some(Up::Release(release)) = session.next().await else { panic!("it is not handed back") };
    assert_eq!((release.task_id, release.token), (LEASE.task_id, LEASE.token));
    assert_eq!(server.requests().len(), 0);
}
