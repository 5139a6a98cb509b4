//! The schema, as schedulers find it when they start: on a real and empty database.

use landfall_scheduler::store;
use sqlx::{Executor, PgPool};

async fn tables(pool: &PgPool) -> i64 {
    sqlx::query_scalar("select count(*) from information_schema.tables where table_schema = 'public'")
        .fetch_one(pool)
        .await
        .expect("count the tables")
}

const DROP: &str = "drop database if exists landfall_empty with (force)";

/// A database in which nothing was made yet, whatever new ones have where the tests run.
async fn empty(server: &PgPool) -> PgPool {
    server.execute(DROP).await.expect("drop a former run's");
    server.execute("create database landfall_empty template template0").await.expect("create a database");
    PgPool::connect_with((*server.connect_options()).clone().database("landfall_empty")).await.expect("connect")
}

#[sqlx::test(migrations = false)]
async fn schedulers_that_start_at_once_on_an_empty_database_migrate_it_once(server: PgPool) {
    let pool = empty(&server).await;
    assert_eq!(tables(&pool).await, 0);
    let options = pool.connect_options();
    let open = || store::open((*options).clone());
    let opened = tokio::join!(open(), open(), open(), open());
    for pool in <[_; 4]>::from(opened) {
        pool.expect("every one of them starts").close().await;
    }
    assert!(tables(&pool).await > 10);
    let applied: i64 =
        sqlx::query_scalar("select count(*) from _sqlx_migrations").fetch_one(&pool).await.expect("count migrations");
    assert_eq!(usize::try_from(applied), Ok(store::MIGRATOR.iter().count()));
    pool.close().await;
    server.execute(DROP).await.expect("drop the database");
}

#[sqlx::test(migrator = "store::MIGRATOR")]
async fn a_schema_newer_than_the_program_is_refused_in_one_sentence(pool: PgPool) {
    pool.execute(
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
         values (29991231000001, 'tomorrow', true, '', 0)",
    )
    .await
    .expect("pretend to be newer");
    let refused = store::open((*pool.connect_options()).clone()).await.expect_err("a newer schema");
    assert_eq!(
        refused.to_string(),
        "the database's schema is newer than this program (it has migration 29991231000001): run the newer landfall"
    );
}

#[sqlx::test(migrator = "store::MIGRATOR")]
async fn no_statement_waits_for_ever(pool: PgPool) {
    let opened = store::open((*pool.connect_options()).clone()).await.expect("open");
    for (setting, expected) in [("statement_timeout", "1min"), ("idle_in_transaction_session_timeout", "1min")] {
        let found: String = sqlx::query_scalar("select current_setting($1)")
            .bind(setting)
            .fetch_one(&opened)
            .await
            .expect("read a setting");
        assert_eq!(found, expected, "{setting}");
    }
    opened.close().await;
}
