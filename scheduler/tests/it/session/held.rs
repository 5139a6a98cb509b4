//! Tests sites that wait because their address permits no further crawl.

use std::time::Instant;

use super::*;

const SITES: usize = 5;
/// Maximum time for granting the four waiting sites one after another. Without wake-ups, each site
/// would wait for the next poll of the job that assigns tasks, which polls every two seconds. The
/// four sites together would then take eight seconds.
const FOUR_LOOKS: Duration = Duration::from_secs(4);

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn sites_of_a_known_address_are_granted_one_after_another_at_once_and_none_in_vain(pool: PgPool) {
    let politeness = PolitenessConfig { crawls_at_address: 1 };
    let running = Running::with(pool.clone(), Config { politeness, ..Config::default() }).await;
    let credential = running.enrol("a").await.credential;
    let capacity = v1::Register { capacity: 5, ..register() };
    let mut agent = running.register(&credential, capacity).await.expect("connect");
    // The sites' address is already known, as after a first crawl.
    sqlx::raw_sql(
        "insert into batches (name, strategy) values ('b', 'random');
         with there as (
             insert into sites (name, crawled_address) select n || '.cn', '192.0.2.7' from generate_series(1, 5) n returning id
         )
         insert into tasks (batch_id, site_id, state) select b.id, there.id, 'located' from there, batches b",
    )
    .execute(&pool)
    .await
    .expect("submit");
    let mut order = agent.crawl_order().await;
    let counts = "select (select count(*) from tasks where held), (select count(*) from leases)";
    let (held, leases): (i64, i64) = sqlx::query_as(counts).fetch_one(&pool).await.expect("count");
    assert_eq!((held, leases), (4, 1), "four wait, though the agent has room for them");

    let began = Instant::now();
    for number in 1..=SITES {
        let address = "192.0.2.7".to_owned();
        let request = v1::PermitRequest { task_id: order.task_id, token: order.token, history: order.history, address };
        agent.say(Up::Permit(request)).await;
        let answer = heard!(agent, Permit);
        assert!(answer.granted, "{answer:?}");
        agent.end(&order).await;
        if number < SITES {
            order = agent.crawl_order().await;
        }
    }
    assert!(began.elapsed() < FOUR_LOOKS, "{:?}", began.elapsed());
    let completed: Vec<String> =
        sqlx::query_scalar("select state::text from leases").fetch_all(&pool).await.expect("read");
    assert_eq!(completed, vec!["completed"; SITES], "no lease was granted only to be handed back");
    running.stop().await;
}
