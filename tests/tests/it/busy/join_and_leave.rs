//! Tests, with the real binaries, agents that join and leave during a batch. A new agent must get
//! work, and the sites of a leaving agent must go to their next candidates.

use std::collections::HashMap;

use landfall_lab::cluster::Cluster;
use landfall_lab::cluster::process::until;

use crate::harness::{ENDED, PATIENCE, beside, count, small, submit};

/// Submits sites with slow crawls, so that sites wait for agents with one slot.
async fn submit_slow(cluster: &Cluster, strategy: &str) {
    submit(cluster, &["--strategy", strategy, "--request-interval", "300ms", "--max-pages", "8"]).await;
}

const LEASED_ONCE: &str = "select count(*) from tasks where state = 'done' and token = 1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_joins_gets_sites_waiting_at_full_agents() {
    let _turn = beside().await;
    let mut cluster = small(3, 12, 1).await;
    cluster.agent(2).terminate();
    cluster.agent(2).wait(PATIENCE).await.unwrap().expect("it leaves in time");
    let pool = cluster.pool.clone();
    let gone = until("its session to end", PATIENCE, async || {
        let active = "select count(*) from sessions where state = 'active'";
        Ok((sqlx::query_scalar::<_, i64>(active).fetch_one(&pool).await? == 2).then_some(()))
    });
    gone.await.unwrap();
    submit_slow(&cluster, "random").await;
    let chosen = "select count(*) from tasks where assignment_id is not null";
    cluster.await_count("every site to have its agent", chosen, 12, PATIENCE).await.unwrap();
    cluster.restart_agent(2).unwrap();
    cluster.await_count("every task to end", ENDED, 12, PATIENCE).await.unwrap();
    let joined = cluster.agent_names()[2].clone();
    let of_joined: i64 =
        sqlx::query_scalar("select count(*) from outcomes o join agents a on a.id = o.agent_id where a.name = $1")
            .bind(&joined)
            .fetch_one(&cluster.pool)
            .await
            .unwrap();
    assert!(of_joined >= 2, "{joined} crawled {of_joined}");
    let rebalanced = "select count(*) from assignments where cause = 'rebalanced'";
    assert!(count(&cluster, rebalanced).await >= of_joined);
    assert_eq!(count(&cluster, LEASED_ONCE).await, 12, "nothing was cut or crawled twice");
    let listed = cluster.operate(&["agents", "list"]).await.unwrap();
    assert!(listed.contains("load") && listed.contains("-1"), "{listed}");
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drained_agents_sites_go_to_its_next_candidates() {
    let _turn = beside().await;
    let mut cluster = small(3, 10, 1).await;
    // The crawls are so slow that sites wait for a slot even if a busy machine measures the sites
    // one after another.
    submit(&cluster, &["--strategy", "gnp-top3", "--request-interval", "1s", "--max-pages", "3"]).await;
    let waiting = "select count(*) from tasks where state = 'assigned'";
    cluster.await_count("sites to wait at agents", waiting, 4, PATIENCE).await.unwrap();
    let fullest: String = sqlx::query_scalar(
        "select a.name from tasks t join agents a on a.id = t.agent_id where t.state = 'assigned'
         group by a.name order by count(*) desc limit 1",
    )
    .fetch_one(&cluster.pool)
    .await
    .unwrap();
    cluster.operate(&["agents", "drain", &fullest]).await.unwrap();
    cluster.await_count("every task to end", ENDED, 10, PATIENCE).await.unwrap();
    let next = "select count(*) from assignments where cause = 'next-candidate'";
    assert!(count(&cluster, next).await >= 1);
    let strangers = "
        select count(*) from assignments n join assignments f on f.task_id = n.task_id and f.id < n.id
        where n.cause = 'next-candidate' and not (n.agent_id = any(f.candidates) and n.agent_id <> f.agent_id)
          and not exists (select from assignments m where m.task_id = n.task_id and m.id > f.id and m.id < n.id)";
    assert_eq!(count(&cluster, strangers).await, 0, "each was a candidate of the choice before");
    assert_eq!(count(&cluster, LEASED_ONCE).await, 10, "nothing was cut or crawled twice");
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_agent_continues_the_crawls_of_a_leaving_one() {
    let _turn = beside().await;
    let mut cluster = small(2, 4, 1).await;
    submit_slow(&cluster, "random").await;
    let crawled = "select count(*) from leases l join agents a on a.id = l.agent_id where l.state = 'active'";
    cluster.await_count("both agents to crawl", crawled, 2, PATIENCE).await.unwrap();
    let fetched = cluster.world.log.entries().len() + 4;
    let log = cluster.world.log.clone();
    until("pages to be fetched", PATIENCE, async || Ok((log.entries().len() >= fetched).then_some(()))).await.unwrap();
    cluster.agent(0).terminate();
    cluster.agent(0).wait(PATIENCE).await.unwrap().expect("it leaves in time");
    cluster.await_count("every task to end", ENDED, 4, PATIENCE).await.unwrap();
    let changed_hands = count(&cluster, "select count(*) from tasks where state = 'done' and token > 1").await;
    assert!(changed_hands >= 1, "the agent that left had begun none");
    let mut asked: HashMap<(usize, String), i64> = HashMap::new();
    for access in cluster.world.log.entries() {
        if access.get && access.path != "/robots.txt" {
            *asked.entry((access.site, access.path)).or_default() += 1;
        }
    }
    // Each crawl that another agent continued may fetch one page again. The repeated page is either
    // the page that was in flight when the first agent left, or the start page, which is requested
    // to find the origin.
    let again: i64 = asked.values().map(|times| times - 1).sum();
    assert!(again <= changed_hands, "{again} pages were fetched again, {changed_hands} crawls changed hands");
    assert_eq!(count(&cluster, "select count(*) from checkpoints").await, 0);
    cluster.stop().await.unwrap();
}
