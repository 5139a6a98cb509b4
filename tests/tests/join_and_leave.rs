//! Agents that come and go in the middle of a batch, with the real binaries: who joins gets work, and what a leaving one had goes to
//! its next candidates.

#![expect(clippy::unwrap_used, reason = "a test stops where it breaks")]

use std::collections::HashMap;
use std::time::Duration;

use landfall_lab::cluster::{Cluster, HURRIED, Options};
use landfall_lab::layout::{Layout, SMALL};
use landfall_lab::process::until;
use landfall_lab::world::World;
use tokio::sync::Mutex;

const PATIENCE: Duration = Duration::from_secs(120);

/// Held by the test whose cluster runs.
static TURN: Mutex<()> = Mutex::const_new(());

/// Agents of one slot each, so that sites have to wait.
async fn cluster(agents: usize, sites: usize) -> Cluster {
    let layout = Layout::parse(SMALL, "small.toml").unwrap();
    let world = World::start(layout.scenario(Some(agents), Some(sites)).unwrap()).await.unwrap();
    let options = Options { scheduler: HURRIED.to_owned(), capacity: 1, logs: None, sharing: 0 };
    Cluster::start(world, &options).await.unwrap()
}

async fn submit(cluster: &Cluster, strategy: &str) {
    let list = cluster.write_site_list().unwrap();
    let words = ["sites", "submit", list.to_str().unwrap(), "--batch", "b", "--strategy", strategy];
    cluster.operate(&[&words[..], &["--request-interval", "300ms", "--max-pages", "8"]].concat()).await.unwrap();
}

async fn count(cluster: &Cluster, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(&cluster.pool).await.unwrap()
}

const ENDED: &str = "select count(*) from tasks where state in ('done', 'failed')";
const LEASED_ONCE: &str = "select count(*) from tasks where state = 'done' and token = 1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_joins_in_mid_batch_gets_what_waits_behind_full_ones() {
    let _turn = TURN.lock().await;
    let mut cluster = cluster(3, 18).await;
    cluster.kill_agent(2).await.unwrap();
    let pool = cluster.pool.clone();
    let gone = until("its session to expire", PATIENCE, async || {
        let active = "select count(*) from sessions where state = 'active'";
        Ok((sqlx::query_scalar::<_, i64>(active).fetch_one(&pool).await? == 2).then_some(()))
    });
    gone.await.unwrap();
    submit(&cluster, "random").await;
    let chosen = "select count(*) from tasks where assignment_id is not null";
    cluster.await_count("every site to have its agent", chosen, 18, PATIENCE).await.unwrap();
    cluster.restart_agent(2).unwrap();
    cluster.await_count("every task to end", ENDED, 18, PATIENCE).await.unwrap();
    let joined = cluster.agent_names()[2].clone();
    let of_joined: i64 =
        sqlx::query_scalar("select count(*) from outcomes o join agents a on a.id = o.agent_id where a.name = $1")
            .bind(&joined)
            .fetch_one(&cluster.pool)
            .await
            .unwrap();
    assert!(of_joined >= 2, "{joined} crawled {of_joined}");
    let passed_on = "select count(*) from assignments where cause = 'rebalanced'";
    assert!(count(&cluster, passed_on).await >= of_joined);
    assert_eq!(count(&cluster, LEASED_ONCE).await, 18, "nothing was cut or crawled twice");
    let listed = cluster.operate(&["agents", "list"]).await.unwrap();
    assert!(listed.contains("load") && listed.contains("-1"), "{listed}");
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_drained_agent_had_goes_to_its_next_candidates() {
    let _turn = TURN.lock().await;
    let mut cluster = cluster(3, 18).await;
    submit(&cluster, "gnp-top3").await;
    let chosen = "select count(*) from tasks where assignment_id is not null";
    cluster.await_count("every site to have its agent", chosen, 18, PATIENCE).await.unwrap();
    let fullest: String = sqlx::query_scalar(
        "select a.name from tasks t join agents a on a.id = t.agent_id where t.state = 'assigned'
         group by a.name order by count(*) desc limit 1",
    )
    .fetch_one(&cluster.pool)
    .await
    .unwrap();
    cluster.operate(&["agents", "drain", &fullest]).await.unwrap();
    cluster.await_count("every task to end", ENDED, 18, PATIENCE).await.unwrap();
    let next = "select count(*) from assignments where cause = 'next-candidate'";
    assert!(count(&cluster, next).await >= 1);
    let strangers = "
        select count(*) from assignments n join assignments f on f.task_id = n.task_id and f.id < n.id
        where n.cause = 'next-candidate' and not (n.agent_id = any(f.candidates) and n.agent_id <> f.agent_id)
          and not exists (select from assignments m where m.task_id = n.task_id and m.id > f.id and m.id < n.id)";
    assert_eq!(count(&cluster, strangers).await, 0, "each was a candidate of the choice before");
    assert_eq!(count(&cluster, LEASED_ONCE).await, 18, "nothing was cut or crawled twice");
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_leaving_agent_had_begun_is_gone_on_with_by_another() {
    let _turn = TURN.lock().await;
    let mut cluster = cluster(2, 6).await;
    submit(&cluster, "random").await;
    let crawled = "select count(*) from leases l join agents a on a.id = l.agent_id where l.state = 'active'";
    cluster.await_count("both agents to crawl", crawled, 2, PATIENCE).await.unwrap();
    let fetched = cluster.world.log.entries().len() + 4;
    let log = cluster.world.log.clone();
    until("pages to be fetched", PATIENCE, async || Ok((log.entries().len() >= fetched).then_some(()))).await.unwrap();
    cluster.agent(0).terminate();
    cluster.agent(0).wait(PATIENCE).await.unwrap().expect("it leaves in time");
    cluster.await_count("every task to end", ENDED, 6, PATIENCE).await.unwrap();
    let changed_hands = count(&cluster, "select count(*) from tasks where state = 'done' and token > 1").await;
    assert!(changed_hands >= 1, "the agent that left had begun none");
    let mut asked: HashMap<(usize, String), i64> = HashMap::new();
    for access in cluster.world.log.entries() {
        if access.get && access.path != "/robots.txt" {
            *asked.entry((access.site, access.path)).or_default() += 1;
        }
    }
    // What was under way when the agent left, and a start page that was asked for while the origin was looked for.
    let again: i64 = asked.values().map(|times| times - 1).sum();
    assert!(again <= changed_hands, "{again} pages were fetched again, {changed_hands} crawls changed hands");
    assert_eq!(count(&cluster, "select count(*) from checkpoints").await, 0);
    cluster.stop().await.unwrap();
}
