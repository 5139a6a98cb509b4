//! Tests a crawl that does not end, although its agent sends heartbeats.

use landfall_scheduler::config::LeaseConfig;

use super::*;

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_lease_that_outlasts_its_time_limit_is_taken_back_although_heartbeats_go_on(pool: PgPool) {
    let second = Duration::from_secs(1);
    let lease = LeaseConfig {
        heartbeat_interval: second / 10,
        life: second,
        grace: second,
        overtime: second,
        ..LeaseConfig::default()
    };
    let running = Running::with(pool.clone(), Config { lease, ..Config::default() }).await;
    let mut agent = running.agent("a").await;
    let max_duration = Some(prost_types::Duration { seconds: 1, nanos: 0 });
    let policy = v1::CrawlPolicy { max_duration, ..v1::CrawlPolicy::default() };
    Operator::of(&running).await.submit("b", "a.cn", policy).await;
    let order = agent.crawl_order().await;

    let taken_back = tokio::time::timeout(PATIENCE, agent.beat_until()).await.expect("it is taken back");
    let Down::Cancel(cancel) = taken_back else { panic!("expected Cancel, got {taken_back:?}") };
    assert_eq!((cancel.task_id, cancel.token), (order.task_id, order.token));
    let Down::Crawl(again) = agent.beat_until().await else { panic!("expected Crawl") };
    assert_eq!((again.task_id, again.token), (order.task_id, 2));
    agent.say(outcome(&order)).await;
    let Down::Outcome(late) = agent.beat_until().await else { panic!("expected Outcome") };
    assert_eq!(late.answer(), Answer::Stale, "the task has a newer lease");
    agent.say(outcome(&again)).await;
    let Down::Outcome(end) = agent.beat_until().await else { panic!("expected Outcome") };
    assert_eq!(end.answer(), Answer::Accepted);
    let ended: Vec<(String, i32)> = sqlx::query_as(
        "select l.state::text, t.crashes from leases l join tasks t on t.id = l.task_id order by l.token",
    )
    .fetch_all(&pool)
    .await
    .expect("read");
    assert_eq!(ended, [("overdue".to_owned(), 0), ("completed".to_owned(), 0)], "an agent that hangs poisons no site");
    running.stop().await;
}
