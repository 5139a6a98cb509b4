//! Tests agents whose outcomes arrive at the same time.

use super::*;

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_whose_task_somebody_holds_does_not_hold_up_the_others(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let mut agents = Vec::new();
    for (name, host) in [("a", "a.cn"), ("b", "b.cn")] {
        let mut agent = running.agent(name).await;
        // The agent that connected earlier has no free slot, so the new agent gets the site.
        submit(&pool, host).await;
        let order = agent.crawl_order().await;
        agents.push((agent, order));
    }
    let mut held = pool.begin().await.expect("begin");
    sqlx::query("select from tasks where id = $1 for update")
        .bind(agents[0].1.task_id)
        .execute(&mut *held)
        .await
        .expect("hold a task");
    let [(first, held_order), (second, order)] = &mut agents[..] else { panic!("two agents") };
    first.say(outcome(held_order)).await;
    second.say(outcome(order)).await;
    assert_eq!(heard!(second, Outcome).answer(), Answer::Accepted);
    held.rollback().await.expect("let go");
    assert_eq!(heard!(first, Outcome).answer(), Answer::Accepted);
    running.stop().await;
}
