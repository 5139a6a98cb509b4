//! Tests that the policy in an operator's request is in the crawl orders that agents receive.

use super::*;

impl Operator {
    /// Watches a batch until it ends; returns the last progress.
    async fn watch(&mut self, batch: &str) -> v1::BatchProgress {
        let request = self.says(v1::WatchBatchRequest { batch: batch.into() });
        let mut stream = self.client.watch_batch(request).await.expect("watch").into_inner();
        let mut last = None;
        while let Some(progress) =
            tokio::time::timeout(PATIENCE, stream.message()).await.expect("a message in time").expect("no error")
        {
            last = Some(progress);
        }
        last.expect("one message at least")
    }
}

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn what_a_batch_says_of_its_crawls_reaches_its_agent_and_so_does_how_large_a_site_was(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let mut operator = Operator::of(&running).await;
    let mut agent = running.agent("a").await;
    assert_eq!(agent.welcome.contact_url, "https://example.org/bot");
    let asked = v1::CrawlPolicy {
        max_pages: Some(7),
        request_interval: seconds(3),
        shortest_interval: seconds(2),
        sitemaps: Some(false),
        store: Some(false),
        include: Some(v1::PathPatterns { patterns: vec!["/a".into()] }),
        exclude: Some(v1::PathPatterns { patterns: vec!["/a/b".into()] }),
        contact_url: Some("https://example.org/study".into()),
        ..v1::CrawlPolicy::default()
    };
    operator.submit("first", "a.cn", asked.clone()).await;
    let order = agent.crawl_order().await;
    let said = order.policy.clone().expect("a policy");
    let usual = v1::CrawlPolicy {
        max_bytes: said.max_bytes,
        max_depth: said.max_depth,
        max_hosts: said.max_hosts,
        max_duration: said.max_duration,
        ..asked
    };
    assert_eq!(said, usual, "what was asked for, as it was");
    assert!(said.max_bytes.is_some() && said.max_depth.is_some() && said.max_duration.is_some(), "and all of the rest");
    assert_eq!(order.last_pages, None, "nobody has crawled it");
    agent.end(&order).await;

    operator.submit("of-one-rate", "a.cn", v1::CrawlPolicy::default()).await;
    let order = agent.crawl_order().await;
    assert_eq!(order.last_pages, None, "nothing depends on it");
    let said = order.policy.clone().expect("a policy");
    assert_eq!((said.store, said.sitemaps, said.contact_url), (Some(true), Some(true), None));
    assert_eq!(said.shortest_interval, said.request_interval);
    agent.end(&order).await;

    operator.submit("by-size", "a.cn", v1::CrawlPolicy { shortest_interval: seconds(0), ..Default::default() }).await;
    assert_eq!(agent.crawl_order().await.last_pages, Some(3));
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_outcomes_hosts_are_reported_if_they_name_other_sites(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let mut operator = Operator::of(&running).await;
    let mut agent = running.agent("a").await;
    for (site, hosts) in [("a.cn", ["new.cn", "a.cn", "b.cn", "not a host"]), ("b.cn", ["New.cn.", "", "http://", "x"])]
    {
        operator.submit("first", site, v1::CrawlPolicy::default()).await;
        let order = agent.crawl_order().await;
        assert_eq!(order.policy.as_ref().and_then(|policy| policy.max_hosts), Some(50));
        let Up::Outcome(report) = outcome(&order) else { unreachable!("an outcome") };
        agent.say(Up::Outcome(v1::OutcomeReport { hosts: hosts.map(Into::into).to_vec(), ..report })).await;
        assert_eq!(heard!(agent, Outcome).answer(), Answer::Accepted);
    }
    let mut reports = ReportServiceClient::new(running.channel().await);
    let mut hosts = async |request: v1::HostsRequest| {
        let request = operator.says(v1::HostsRequest { batch: "first".into(), ..request });
        let mut stream = reports.hosts(request).await.expect("the report").into_inner();
        let mut rows = Vec::new();
        while let Some(row) = stream.message().await.expect("a row") {
            rows.push((row.host, row.sites, row.listed, row.more));
        }
        rows
    };
    let row = |host: &str, sites, listed, more| (host.to_owned(), sites, listed, more);
    let all = hosts(v1::HostsRequest::default()).await;
    assert_eq!(all, [row("b.cn", 1, true, 0), row("new.cn", 2, false, 0), row("x", 1, false, 0)]);
    let first = hosts(v1::HostsRequest { limit: 1, ..v1::HostsRequest::default() }).await;
    assert_eq!(first, [row("b.cn", 1, true, 2)]);
    let wanted = v1::HostsRequest { unlisted: true, min_sites: 2, ..v1::HostsRequest::default() };
    assert_eq!(hosts(wanted).await, [row("new.cn", 2, false, 0)]);
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_site_is_crawled_again_when_its_time_has_come_until_its_batch_is_cancelled(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let mut operator = Operator::of(&running).await;
    let mut agent = running.agent("a").await;
    let hourly = v1::CrawlPolicy {
        recrawl_interval: seconds(3600),
        shortest_interval: seconds(0),
        ..v1::CrawlPolicy::default()
    };
    operator.submit("b", "a.cn", hourly).await;
    let first = agent.crawl_order().await;
    assert_eq!(first.policy.as_ref().and_then(|policy| policy.recrawl_interval), None, "that is the scheduler's");
    agent.end(&first).await;
    let progress = operator.watch("b").await;
    assert_eq!((progress.complete, progress.pages), (1, 3));
    let due = progress.next_recrawl.expect("it is crawled again");

    let hour_passes = "update tasks set recrawl_at = recrawl_at - interval '1 hour' where recrawl_at is not null";
    sqlx::query(hour_passes).execute(&pool).await.expect("set the clock back");
    let second = agent.crawl_order().await;
    assert!(second.task_id != first.task_id && second.site == first.site, "{second:?}");
    assert_eq!((second.token, second.checkpoint.len(), second.last_pages), (1, 0, Some(3)));
    assert_eq!(agent.report(&first).await.answer(), Answer::Duplicate, "the former round stays");
    agent.end(&second).await;
    let progress = operator.watch("b").await;
    assert_eq!((progress.complete, progress.pages), (1, 3), "a site counts once");
    assert!(progress.next_recrawl.expect("and again").seconds >= due.seconds);

    let cancel = v1::CancelTasksRequest { batch: "b".into(), all: true, ..v1::CancelTasksRequest::default() };
    let request = operator.says(cancel);
    let cancelled = operator.client.cancel_tasks(request).await.expect("cancel").into_inner();
    assert_eq!((cancelled.tasks, cancelled.ended, cancelled.recrawls), (0, 1, 1));
    assert_eq!(operator.watch("b").await.next_recrawl, None);
    let rounds: Vec<(i32, String)> = sqlx::query_as("select round, state::text from tasks order by round")
        .fetch_all(&pool)
        .await
        .expect("read the tasks");
    assert_eq!(rounds, [(1, "done".to_owned()), (2, "done".to_owned())]);
    running.stop().await;
}
