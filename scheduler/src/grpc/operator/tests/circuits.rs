//! Tests how operators reopen sites.

use super::*;

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn circuits_in_use_are_left_open_and_closed_by_the_next_call(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    for batch in ["autumn", "winter", "spring"] {
        desk.submit(batch, &["first.cn"]).await.expect("submitted");
    }
    desk.agents(1).await;
    desk.run("insert into sites (name) select 's' || n || '.cn' from generate_series(2, 1200) n").await;
    desk.run("insert into open_circuits (site_id, agent_id, message) select s.id, a.id, '' from sites s, agents a")
        .await;
    desk.run(
        "insert into tasks (batch_id, site_id, state) select b.id, s.id, 'submitted'
         from batches b, sites s where s.name <> 'first.cn'",
    )
    .await;
    desk.run("update tasks set state = 'located', held = true").await;
    desk.run(
        "insert into task_holds (task_id, batch_id, site_id, cause) select id, batch_id, site_id, 'breaker' from tasks",
    )
    .await;
    let mut using = desk.pool.begin().await.expect("begin");
    let use_one = "select from tasks where id = (select max(id) from tasks) for update";
    sqlx::query(use_one).execute(&mut *using).await.expect(use_one);

    let all = || v1::ReopenSitesRequest { sites: Vec::new(), all: true };
    let reopened = desk.sites().reopen_sites(all()).await.expect("reopened").into_inner();
    // The other tasks of the site in use are released, and held again if its circuit stays open.
    assert_eq!((reopened.sites, reopened.tasks, reopened.busy), (1_199, 3_599, 1));
    let pieces = desk.scheduler.operators.counts()["reopen sites"];
    assert!(pieces.ended > 3 && pieces.failed == 0, "{pieces:?}");
    let named = v1::ReopenSitesRequest { sites: vec!["first.cn".into()], all: false };
    let again = desk.sites().reopen_sites(named).await.expect("reopened").into_inner();
    assert_eq!((again.sites, again.tasks, again.busy), (0, 0, 0), "the call may be repeated");

    // A call that its client leaves changes nothing that the next call could not go on with.
    let left = tokio::time::timeout(Duration::from_millis(1), desk.sites().reopen_sites(all())).await;
    assert!(left.is_err(), "the circuit is still in use");
    using.commit().await.expect("commit");
    let rest = desk.sites().reopen_sites(all()).await.expect("reopened").into_inner();
    assert_eq!(rest.busy, 0);
    let left = "select (select count(*) from open_circuits) + (select count(*) from task_holds) + count(*) from tasks where held";
    assert_eq!(sqlx::query_scalar::<_, i64>(left).fetch_one(&desk.pool).await.expect("a count"), 0);
}
