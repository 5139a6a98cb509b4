//! Tests several schedulers on one database: all serve agents, each role has only one leader at a
//! time, and each scheduler can be killed.

use super::*;

/// Two schedulers on one database; the first has all roles.
struct Pair {
    pool: PgPool,
    first: Running,
    second: Running,
    operator: Operator,
}

impl Pair {
    async fn start(pool: PgPool) -> Self {
        let first = beside(&pool).await;
        await_count(&pool, "select count(holder) from terms", 3).await;
        let second = beside(&pool).await;
        await_count(&pool, "select count(*) from schedulers", 2).await;
        let operator = Operator::of(&second).await;
        Self { pool, first, second, operator }
    }

    /// Submits a site through the second scheduler.
    async fn submit(&mut self, host: &str) {
        self.operator.submit(host, host, v1::CrawlPolicy::default()).await;
    }

    async fn stop(self) {
        self.first.stop().await;
        self.second.stop().await;
    }
}

/// Starts a scheduler with its own database connections.
async fn beside(pool: &PgPool) -> Running {
    let own = PgPoolOptions::new().max_connections(8).connect_with((*pool.connect_options()).clone());
    Running::start(own.await.expect("connect")).await
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn an_agent_takes_its_leases_to_the_other_scheduler_and_its_former_stream_is_told(pool: PgPool) {
    let mut pair = Pair::start(pool).await;
    let mut agent = pair.first.agent("a").await;
    pair.submit("a.cn").await;
    let order = agent.crawl_order().await;

    let mut moved = pair.second.connect(&agent.credential, held(&order)).await;
    assert_eq!(moved.welcome.kept, held(&order));
    assert_eq!(moved.welcome.other_scheduler_urls, std::slice::from_ref(&pair.first.url));
    let told = agent.ended().await;
    assert_eq!(told.code(), Code::Aborted, "{told}");
    assert!(told.message().starts_with("superseded"), "{told}");
    moved.end(&order).await;
    moved.disconnect().await;
    pair.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn when_a_scheduler_is_killed_the_other_reaps_and_plans_and_an_agent_that_lives_loses_nothing(pool: PgPool) {
    let mut pair = Pair::start(pool).await;
    let mut agent = pair.second.agent("a").await;
    let mut dying = pair.first.agent("lost").await;

    // The tokio task of the scheduler is aborted, so the scheduler frees no role.
    pair.first.task.abort();
    pair.submit("a.cn").await;
    let order = agent.crawl_order().await;
    assert_eq!(order.token, 1);
    let terms: Vec<i64> =
        sqlx::query_scalar("select number from terms").fetch_all(&pair.pool).await.expect("read the terms");
    assert_eq!(terms, [2, 2, 2], "the other took every role once");
    agent.beat().await;
    sqlx::query(
        "update sessions set expires_at = now() where id in (select s.id from sessions s
         join agents a on a.id = s.agent_id where a.name = 'lost')",
    )
    .execute(&pair.pool)
    .await
    .expect("let the time pass");
    await_count(&pair.pool, "select count(*) from sessions where state = 'expired'", 1).await;
    assert!(dying.hear().await.is_err(), "its stream is gone");
    agent.disconnect().await;
    pair.second.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_notice_that_is_lost_costs_time_and_nothing_else(pool: PgPool) {
    let mut pair = Pair::start(pool).await;
    let mut agent = pair.second.agent("a").await;
    let listeners =
        "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'";
    await_count(&pair.pool, listeners, 2).await;
    let cut: Vec<bool> = sqlx::query_scalar(
        "select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and query ilike 'listen%'",
    )
    .fetch_all(&pair.pool)
    .await
    .expect("cut the listeners' connections");
    assert_eq!(cut, [true, true]);
    for host in ["a.cn", "b.cn", "c.cn"] {
        pair.submit(host).await;
        let order = agent.crawl_order().await;
        agent.end(&order).await;
    }
    await_count(&pair.pool, listeners, 2).await;
    agent.disconnect().await;
    pair.stop().await;
}

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn a_scheduler_that_stops_hands_its_roles_over(pool: PgPool) {
    let Pair { pool, first, second, .. } = Pair::start(pool).await;
    first.stop().await;
    await_count(&pool, "select count(*) from terms join schedulers on id = holder where number = 2", 3).await;
    await_count(&pool, "select count(*) from schedulers", 1).await;
    second.stop().await;
    await_count(&pool, "select count(*) from schedulers", 0).await;
}
