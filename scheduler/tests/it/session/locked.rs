//! Tests that nobody else notices a task that another transaction has locked, for example an
//! operator in psql.

use landfall_proto::v1::fleet_service_client::FleetServiceClient;
use landfall_scheduler::config::LeaseConfig;
use sqlx::{Postgres, Transaction};
use tokio::time::Instant;

use super::*;

/// Maximum time for an answer that waits for no lock, on a busy machine.
const SOON: Duration = Duration::from_secs(5);

/// Sessions that expire soon, so that a test can outlast one.
fn short() -> Config {
    let lease = LeaseConfig {
        heartbeat_interval: Duration::from_millis(100),
        life: Duration::from_secs(2),
        grace: Duration::from_secs(1),
        ..LeaseConfig::default()
    };
    Config { lease, ..Config::default() }
}

/// Locks a task as an operator would.
async fn lock(pool: &PgPool, order: &v1::CrawlOrder) -> Transaction<'static, Postgres> {
    let mut by_hand = pool.begin().await.expect("begin");
    let lock = sqlx::query("select from tasks where id = $1 for update").bind(order.task_id);
    assert_eq!(lock.execute(&mut *by_hand).await.expect("lock the task").rows_affected(), 1);
    by_hand
}

async fn soon<T>(what: &str, answer: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, answer).await.unwrap_or_else(|_| panic!("{what} waits for the locked task"))
}

async fn number(pool: &PgPool, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(pool).await.expect("count")
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn while_the_task_of_an_outcome_is_locked_heartbeats_are_answered_and_no_other_lease_crashes(pool: PgPool) {
    let running = Running::with(pool.clone(), short()).await;
    let enrolled = running.enrol("a").await;
    let mut agent =
        running.register(&enrolled.credential, v1::Register { capacity: 2, ..register() }).await.expect("connect");
    submit(&pool, "a.cn").await;
    let ends = agent.crawl_order().await;
    submit(&pool, "b.cn").await;
    let goes_on = agent.crawl_order().await;
    let by_hand = lock(&pool, &ends).await;
    agent.say(outcome(&ends)).await;
    let began = Instant::now();
    // Twice the lifetime of a session, including its grace period.
    while began.elapsed() < Duration::from_secs(6) {
        agent.say(heartbeat(1)).await;
        soon("a heartbeat", async { heard!(agent, Heartbeat) }).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    by_hand.commit().await.expect("commit");
    let Down::Outcome(answer) = agent.beat_until().await else { panic!("expected Outcome") };
    assert_eq!((answer.task_id, answer.answer()), (ends.task_id, Answer::Accepted));
    assert_eq!(number(&pool, "select sum(crashes) from tasks").await, 0);
    assert_eq!(number(&pool, "select count(*) from sessions").await, 1, "its session never ended");
    agent.say(outcome(&goes_on)).await;
    let Down::Outcome(answer) = agent.beat_until().await else { panic!("expected Outcome") };
    assert_eq!(answer.answer(), Answer::Accepted);
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn while_a_task_of_a_lost_agent_is_locked_others_connect_enrol_leave_and_are_removed(pool: PgPool) {
    let running = Running::with(pool.clone(), short()).await;
    let mut lost = running.agent("lost").await;
    submit(&pool, "a.cn").await;
    let order = lost.crawl_order().await;
    let by_hand = lock(&pool, &order).await;
    drop(lost);
    await_count(&pool, "select count(*) from sessions where state = 'expired'", 1).await;

    let leaving = soon("a new session", running.agent("leaving")).await;
    leaving.say(Up::Leave(v1::Leave {})).await;
    soon("the end of a session", leaving.disconnect()).await;
    let operator = Operator::of(&running).await;
    let removal = operator.says(v1::RemoveAgentRequest { name: "leaving".into(), force: true });
    soon("a removal", FleetServiceClient::new(running.channel().await).remove_agent(removal)).await.expect("remove");
    let back = soon("the replacement of the lost agent", running.enrol("lost")).await;
    let mut back = soon("its session", running.connect(&back.credential, Vec::new())).await;

    by_hand.commit().await.expect("commit");
    let again = back.crawl_order().await;
    assert_eq!((again.task_id, again.token), (order.task_id, 2));
    running.stop().await;
}
