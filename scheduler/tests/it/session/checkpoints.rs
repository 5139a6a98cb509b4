//! Tests crawls that move from one agent to another with their checkpoint.

use landfall_scheduler::store::sites;

use super::*;

fn checkpoint(order: &v1::CrawlOrder, pages: u32, state: &[u8]) -> Up {
    Up::Checkpoint(v1::CrawlCheckpoint {
        task_id: order.task_id,
        token: order.token,
        history: order.history,
        pages,
        state: state.to_vec(),
        rate_state: None,
    })
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn how_far_a_crawl_has_come_goes_to_the_next_agent_and_is_forgotten_with_its_outcome(pool: PgPool) {
    let (running, first, order) = Running::crawling(&pool).await;
    assert!(order.checkpoint.is_empty());
    let mut second = running.agent("b").await;
    for (pages, state) in [(3, "early"), (5, "late")] {
        first.say(checkpoint(&order, pages, state.as_bytes())).await;
    }
    // A checkpoint of another agent's lease changes nothing.
    second.say(checkpoint(&order, 9, b"another's")).await;
    first.say(Up::Leave(v1::Leave {})).await;
    first.say(release(&order)).await;
    first.disconnect().await;
    let again = second.crawl_order().await;
    assert_eq!((again.task_id, again.token, again.checkpoint.as_slice()), (order.task_id, 2, b"late".as_slice()));
    second.end(&again).await;
    let left: i64 = sqlx::query_scalar("select count(*) from checkpoints").fetch_one(&pool).await.expect("count");
    assert_eq!(left, 0);
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn one_that_is_too_large_ends_the_session_with_the_reason(pool: PgPool) {
    let (running, mut agent, order) = Running::crawling(&pool).await;
    agent.say(checkpoint(&order, 1, &vec![0; (1 << 20) + 1])).await;
    let told = agent.ended().await;
    assert_eq!(told.message(), "state: 1048577 bytes when at most 1048576 are kept");
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_operator_sees_why_a_crawl_is_slow(pool: PgPool) {
    let (running, agent, order) = Running::crawling(&pool).await;
    let length = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    agent
        .say(Up::Checkpoint(v1::CrawlCheckpoint {
            task_id: order.task_id,
            token: order.token,
            history: order.history,
            pages: 7,
            state: vec![1; 300],
            rate_state: Some(v1::CrawlRateState {
                interval: length(2),
                pause: length(600),
                turned_away: 3,
                failed_in_a_row: 1,
                recent_requests: 20,
                recent_errors: 4,
                last_error: "http://a.cn/x: answered 429".into(),
            }),
        }))
        .await;
    await_count(&pool, "select count(*) from checkpoints", 1).await;
    let mut conn = pool.acquire().await.expect("connect");
    let name = "a.cn".parse().expect("a name");
    let site = sites::find(&mut conn, &name).await.expect("look").expect("the site");
    let task = sites::tasks(&mut conn, &site).await.expect("look").remove(0);
    let progress = task.progress.expect("how far it is");
    assert_eq!((progress.pages, progress.state_bytes), (7, 300));
    let left = progress.paused_until.expect("a pause") - progress.saved_at;
    assert_eq!(left.num_seconds(), 600);
    let rate_state = progress.rate_state;
    assert_eq!(
        (rate_state.interval, rate_state.turned_away, rate_state.failed_in_a_row),
        (Some(Duration::from_secs(2)), 3, 1)
    );
    assert_eq!((rate_state.recent_requests, rate_state.recent_errors), (20, 4));
    assert_eq!(rate_state.last_error, "http://a.cn/x: answered 429");
    running.stop().await;
}
