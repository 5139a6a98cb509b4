//! Tests messages about leases of a history that the database has lost, in which other leases had the
//! same numbers.

use super::*;

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn what_is_said_of_a_lost_lease_does_not_touch_the_lease_with_its_numbers(pool: PgPool) {
    let (running, mut agent, order) = Running::crawling(&pool).await;
    assert!(order.history > 0);
    let lost = v1::CrawlOrder { history: order.history + 1, ..order.clone() };
    let ack = agent.report(&lost).await;
    assert_eq!((ack.answer(), ack.history), (Answer::LostHistory, lost.history));
    assert!(ack.reason.contains("crawled again"), "{}", ack.reason);
    let v1::CrawlOrder { task_id, token, history, .. } = lost;
    let state = b"another site's".to_vec();
    agent.say(Up::Checkpoint(v1::CrawlCheckpoint { task_id, token, history, state, ..Default::default() })).await;
    agent.say(release(&lost)).await;
    let address = "192.0.2.7".to_owned();
    agent.say(Up::Permit(v1::PermitRequest { task_id, token, history, address: address.clone() })).await;
    agent.say(Up::Permit(v1::PermitRequest { task_id, token, history: order.history, address })).await;
    // Only the permit of the lease that the database knows is answered.
    assert_eq!(heard!(agent, Permit).history, order.history);
    agent.beat().await;
    let state = "select t.state::text, l.state::text, (select count(*) from checkpoints) from tasks t join leases l on l.task_id = t.id";
    let state: (String, String, i64) = sqlx::query_as(state).fetch_one(&pool).await.expect("one lease");
    assert_eq!((state.0.as_str(), state.1.as_str(), state.2), ("leased", "active", 0));
    assert_eq!(refusals(&pool).await, [("lost-history".to_owned(), 1)]);

    let credential = agent.disconnect().await;
    let both = [held(&lost), held(&order)].concat();
    let mut agent = running.connect(&credential, both).await;
    assert_eq!(agent.welcome.kept, held(&order));
    agent.end(&order).await;
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn the_leases_of_agents_that_name_no_history_are_known_by_their_numbers(pool: PgPool) {
    let (running, agent, order) = Running::crawling(&pool).await;
    let unnamed = v1::CrawlOrder { history: 0, ..order };
    let mut agent = running.connect(&agent.disconnect().await, held(&unnamed)).await;
    assert_eq!(agent.welcome.kept, held(&unnamed));
    agent.end(&unnamed).await;
    running.stop().await;
}
