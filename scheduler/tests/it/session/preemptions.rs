//! Tests how a slow crawl moves to another agent: it is preempted, handed back with its checkpoint,
//! and resumed by the other agent.

use super::*;

/// Makes a site of an `earliest-finish` batch. The round trip to the site is 400 ms from the agent
/// `far` and 10 ms from the agent `near`. The request interval is zero. Each agent has one slot,
/// and the agent `near` is disconnected.
async fn far_away(pool: &PgPool) {
    sqlx::raw_sql(
        r#"insert into batches (name, strategy) values ('b', 'earliest-finish');
         update batches set policy = policy || '{"max_pages": 100000, "max_bytes": 10000000000, "max_duration_ms": 3600000,
                                                 "request_interval_ms": 0, "shortest_interval_ms": 0}';
         insert into sites (name) values ('a.cn');
         insert into site_measurements (site_id, prober_id, rtt_us, answered, lost)
         select s.id, a.id, case a.name when 'far' then 400000 else 10000 end, 5, 0 from sites s, agents a;
         insert into tasks (batch_id, site_id, state, choice) select b.id, s.id, 'located', b.choice from batches b, sites s;"#,
    )
    .execute(pool)
    .await
    .expect("a located site");
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_straggler_goes_to_an_agent_that_ends_it_sooner_and_no_page_is_lost(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let (mut slow, near) = (running.agent("far").await, running.enrol("near").await);
    far_away(&pool).await;
    let order = slow.crawl_order().await;
    assert_eq!((order.token, order.checkpoint.len()), (1, 0));
    let mut quick = running.connect(&near.credential, Vec::new()).await;
    // The site is larger than predicted. 150 pages were fetched in a minute, and the number of
    // remaining pages is unknown.
    let so_far = v1::CrawlCheckpoint { pages: 150, state: b"early".to_vec(), ..checkpoint(&order) };
    slow.say(Up::Checkpoint(so_far)).await;
    await_count(&pool, "select count(*) from checkpoints", 1).await;
    let aged = "update leases set granted_at = now() - interval '60 s'";
    sqlx::query(aged).execute(&pool).await.expect("let the time pass");

    let preempt = heard!(slow, Preempt);
    assert_eq!((preempt.task_id, preempt.token), (order.task_id, order.token));
    assert!(preempt.reason.starts_with("near would finish it in about "), "{}", preempt.reason);
    assert!(preempt.reason.contains("; here it takes about "), "{}", preempt.reason);
    let last = v1::CrawlCheckpoint { pages: 152, state: b"late".to_vec(), ..checkpoint(&order) };
    slow.say(Up::Checkpoint(last)).await;
    slow.say(release(&order)).await;

    let taken_over = quick.crawl_order().await;
    assert_eq!((taken_over.task_id, taken_over.token), (order.task_id, 2), "a new lease of the same task");
    assert_eq!(taken_over.checkpoint, b"late", "from where it was");
    // The scheduler rejects a late outcome of the former agent.
    assert_eq!(slow.report(&order).await.answer(), Answer::Stale);
    quick.end(&taken_over).await;

    let told: Vec<(String, String)> = sqlx::query_as(
        "select a.name, c.cause::text from assignments c join agents a on a.id = c.agent_id order by c.id",
    )
    .fetch_all(&pool)
    .await
    .expect("the choices");
    let expected = [("far", "strategy"), ("near", "taken-back")];
    assert_eq!(told, expected.map(|(agent, cause)| (agent.to_owned(), cause.to_owned())));
    let leases: Vec<(i64, String)> = sqlx::query_as("select token, state::text from leases order by token")
        .fetch_all(&pool)
        .await
        .expect("the leases");
    assert_eq!(leases, [(1, "released".to_owned()), (2, "completed".to_owned())]);
    running.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_that_does_not_know_of_preemptions_goes_on_and_its_outcome_counts(pool: PgPool) {
    let running = Running::start(pool.clone()).await;
    let (mut slow, near) = (running.agent("far").await, running.enrol("near").await);
    far_away(&pool).await;
    let order = slow.crawl_order().await;
    let _quick = running.connect(&near.credential, Vec::new()).await;
    let long = "with so as (update assignments set crawl_ms = 600000)
                update leases set granted_at = now() - interval '60 s'";
    sqlx::query(long).execute(&pool).await.expect("let the time pass");
    heard!(slow, Preempt);
    slow.end(&order).await;
    running.stop().await;
}

fn checkpoint(order: &v1::CrawlOrder) -> v1::CrawlCheckpoint {
    v1::CrawlCheckpoint { task_id: order.task_id, token: order.token, ..v1::CrawlCheckpoint::default() }
}
