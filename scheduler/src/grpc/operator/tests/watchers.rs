//! Tests what operators who watch batches cost, and that whoever waits is answered.

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use super::*;

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_batch_is_shown_over_a_single_connection(options: PgPoolOptions, connect: PgConnectOptions) {
    let pool = options.max_connections(1).connect_with(connect).await.expect("a connection");
    let desk = OperatorServer::open(pool).await;
    desk.submit("autumn", &["a.cn", "b.cn"]).await.expect("submitted");
    let mut sites = desk.sites();
    let shown = sites.show_batch(v1::ShowBatchRequest { batch: "autumn".into() });
    let shown = tokio::time::timeout(Duration::from_secs(5), shown).await.expect("an answer").expect("shown");
    let estimate = shown.into_inner().progress.expect("progress").estimate.expect("an estimate");
    assert_eq!(estimate.sites, 2);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_call_that_waits_for_a_fit_ends_with_the_scheduler(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let mut client = desk.embeddings();
    let wait = Some(prost_types::Duration { seconds: 300, nanos: 0 });
    let call = client.fit_embedding(v1::FitEmbeddingRequest { wait });
    let stop = async {
        // The request is stored before the call waits.
        let asked = "select count(*) from fit_requests";
        while sqlx::query_scalar::<_, i64>(asked).fetch_one(&desk.pool).await.expect("a count") == 0 {}
        desk.shutdown.cancel();
    };
    let both = async { tokio::join!(call, stop).0 };
    let ended = tokio::time::timeout(Duration::from_secs(2), both).await.expect("an answer").expect_err("stopping");
    assert_eq!(ended.code(), Code::Unavailable);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn fifty_watches_of_a_batch_read_its_progress_twice_a_second(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    desk.submit("autumn", &["a.cn", "b.cn"]).await.expect("submitted");
    let begun = std::time::Instant::now();
    let watch = || async {
        let request = v1::WatchBatchRequest { batch: "autumn".into() };
        let mut watch = desk.sites().watch_batch(request).await.expect("a stream").into_inner();
        for _ in 0..4 {
            assert_eq!(watch.message().await.expect("a message").expect("progress").submitted, 2);
        }
    };
    futures_util::future::join_all((0..50).map(|_| watch())).await;
    let read = desk.scheduler.operators.counts()["read progress"].ended;
    let most = 2 + begun.elapsed().as_millis() / 500;
    assert!(u128::from(read) <= most, "{read} times in {:?}", begun.elapsed());
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_flood_of_requests_for_readiness_costs_few_connections(pool: PgPool) {
    let desk = OperatorServer::open(pool).await;
    let begun = std::time::Instant::now();
    for _ in 0..1_000 {
        crate::grpc::operator::ready(&desk.scheduler).await.expect("ready");
    }
    let asked = desk.scheduler.readiness.counts()["tell readiness"].ended;
    assert!(u128::from(asked) <= 1 + begun.elapsed().as_millis() / 250, "{asked} times in {:?}", begun.elapsed());
    desk.scheduler.readiness.close().await;
    while crate::grpc::operator::ready(&desk.scheduler).await.is_ok() {
        tokio::task::yield_now().await;
    }
}
