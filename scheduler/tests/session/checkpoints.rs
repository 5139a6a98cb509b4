//! Crawls that change hands.

use super::*;

fn checkpoint(order: &v1::CrawlOrder, pages: u32, state: &[u8]) -> v1::session_request::Message {
    v1::session_request::Message::Checkpoint(v1::CrawlCheckpoint {
        task_id: order.task_id,
        token: order.token,
        pages,
        state: state.to_vec(),
    })
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn how_far_a_crawl_has_come_goes_to_the_next_agent_and_is_forgotten_with_its_outcome(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let (leaving, staying) = (running.enrol("a").await, running.enrol("b").await);
    let mut first = Agent::connect(&running, &leaving.credential, Vec::new()).await.expect("connect");
    first.welcome().await;
    submit(&pool, "a.cn").await;
    let order = first.crawl_order().await;
    assert!(order.checkpoint.is_empty());
    let mut second = Agent::connect(&running, &staying.credential, Vec::new()).await.expect("connect");
    second.welcome().await;
    for (pages, state) in [(3, "early"), (5, "late")] {
        first.say(checkpoint(&order, pages, state.as_bytes())).await;
    }
    // Of leases that are not its own, it says nothing.
    second.say(checkpoint(&order, 9, b"another's")).await;
    first.say(v1::session_request::Message::Leave(v1::Leave {})).await;
    first.say(release(&order)).await;
    first.hang_up().await;
    let again = second.crawl_order().await;
    assert_eq!((again.task_id, again.token, again.checkpoint.as_slice()), (order.task_id, 2, b"late".as_slice()));
    second.say(outcome(&again)).await;
    assert_eq!(second.outcome_ack().await.answer(), v1::outcome_ack::Answer::Accepted);
    let left: i64 = sqlx::query_scalar("select count(*) from checkpoints").fetch_one(&pool).await.expect("count");
    assert_eq!(left, 0);
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn one_that_is_too_large_ends_the_session_with_the_reason(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let enrolled = running.enrol("a").await;
    let mut agent = Agent::connect(&running, &enrolled.credential, Vec::new()).await.expect("connect");
    agent.welcome().await;
    submit(&pool, "a.cn").await;
    let order = agent.crawl_order().await;
    agent.say(checkpoint(&order, 1, &vec![0; (1 << 20) + 1])).await;
    let told = agent.hear().await.expect_err("it is refused");
    assert_eq!(told.message(), "state: 1048577 bytes when at most 1048576 are kept");
    running.stop().await;
}
