//! Tests how schedulers create and check the schema when they start, on a real database.

use landfall_scheduler::store::{self, Db, Share};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Executor, PgPool};

async fn tables(pool: &PgPool) -> i64 {
    sqlx::query_scalar("select count(*) from information_schema.tables where table_schema = 'public'")
        .fetch_one(pool)
        .await
        .expect("count the tables")
}

/// Makes an empty database of this name, even if the server's template database is not empty.
async fn empty(server: &PgPool, name: &str) -> PgPool {
    drop_database(server, name).await;
    let create = AssertSqlSafe(format!("create database {name} template template0"));
    server.execute(create).await.expect("create a database");
    PgPool::connect_with((*server.connect_options()).clone().database(name)).await.expect("connect")
}

async fn drop_database(server: &PgPool, name: &str) {
    let drop = AssertSqlSafe(format!("drop database if exists {name} with (force)"));
    server.execute(drop).await.expect("drop the database");
}

/// Returns the error with which a start on this database fails.
async fn refused(options: PgConnectOptions) -> String {
    let error = store::prepare(&options).await.expect_err("something stands in the way");
    format!("{:#}", anyhow::Error::from(error))
}

#[sqlx::test(migrations = false)]
async fn schedulers_that_start_at_once_on_an_empty_database_migrate_it_once(server: PgPool) {
    let pool = empty(&server, "landfall_empty").await;
    assert_eq!(tables(&pool).await, 0);
    let options = pool.connect_options();
    let prepare = || store::prepare(&options);
    let opened = tokio::join!(prepare(), prepare(), prepare(), prepare());
    for prepared in <[_; 4]>::from(opened) {
        prepared.expect("every one of them starts");
    }
    assert!(tables(&pool).await > 10);
    let applied: i64 =
        sqlx::query_scalar("select count(*) from _sqlx_migrations").fetch_one(&pool).await.expect("count migrations");
    assert_eq!(usize::try_from(applied), Ok(store::MIGRATOR.iter().count()));
    pool.close().await;
    drop_database(&server, "landfall_empty").await;
}

#[sqlx::test(migrator = "store::MIGRATOR")]
async fn a_schema_newer_than_the_program_is_refused_in_one_sentence(pool: PgPool) {
    pool.execute(
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
         values (2999, 'tomorrow', true, '', 0)",
    )
    .await
    .expect("pretend to be newer");
    let refused = store::prepare(&pool.connect_options()).await.expect_err("a newer schema");
    assert_eq!(
        refused.to_string(),
        "the database's schema is newer than this program (it has migration 2999): run the newer landfall"
    );
}

#[sqlx::test(migrations = false)]
async fn a_role_that_may_not_create_tables_is_told_which_grant_it_needs(server: PgPool) {
    let (database, role) = ("landfall_no_grant", "landfall_poor");
    let pool = empty(&server, database).await;
    server.execute("drop role if exists landfall_poor").await.expect("drop a former run's");
    server.execute("create role landfall_poor").await.expect("create a role");
    let options = (*pool.connect_options()).clone().options([("role", role)]);
    let grant = "grant usage, create on schema public to landfall_poor";
    let needs = format!(
        "the role {role} may not create tables in the schema public of the database {database}: let the database's owner run `{grant}`"
    );
    // Postgres 14 and older let every role create tables.
    pool.execute("revoke create on schema public from public").await.expect("revoke");
    assert_eq!(refused(options.clone()).await, needs);
    pool.execute("revoke all on schema public from public").await.expect("revoke");
    assert_eq!(refused(options.clone()).await, needs, "it does not even see the schema");
    pool.execute(grant).await.expect("grant");
    store::prepare(&options).await.expect("the grant was all that it needed");

    // Gives the table to another owner.
    pool.execute("alter table _sqlx_migrations owner to current_user").await.expect("take a table away");
    let said = refused(options).await;
    assert!(
        said.starts_with(
            "the role landfall_poor may not change the tables of the database landfall_no_grant (permission denied"
        ),
        "{said}"
    );
    pool.close().await;
    drop_database(&server, database).await;
    server.execute("drop role landfall_poor").await.expect("drop the role");
}

#[sqlx::test(migrations = false)]
async fn tables_of_another_program_are_not_taken_for_a_fault_of_the_schema(server: PgPool) {
    let database = "landfall_foreign";
    let pool = empty(&server, database).await;
    let options = (*pool.connect_options()).clone();
    pool.execute("create table agents (name text)").await.expect("make their table");
    let theirs = |said: &str| {
        format!(
            "the database {database} contains the tables of another program ({said}): give landfall a database of its \
             own (`createdb`)"
        )
    };
    assert_eq!(refused(options.clone()).await, theirs("relation \"agents\" already exists"));
    // Another program may keep its migrations in a table of the same name.
    pool.execute("insert into _sqlx_migrations values (70, 'theirs', now(), true, '', 0)").await.expect("pretend");
    assert_eq!(refused(options.clone()).await, theirs("it has their migration 70"));
    pool.execute("drop table _sqlx_migrations; create table _sqlx_migrations (version text)").await.expect("pretend");
    assert_eq!(refused(options).await, theirs("column \"success\" does not exist"));
    pool.close().await;
    drop_database(&server, database).await;
}

#[sqlx::test(migrator = "store::MIGRATOR")]
async fn a_schema_that_another_build_or_half_an_upgrade_left_is_named(pool: PgPool) {
    let options = (*pool.connect_options()).clone();
    let newest = store::MIGRATOR.iter().map(|migration| migration.version).max().expect("a migration");
    let migration = async |change: &str| {
        let change = AssertSqlSafe(format!("update _sqlx_migrations set {change} where version = {newest}"));
        pool.execute(change).await.expect("change");
    };
    migration("success = false").await;
    let said = refused(options.clone()).await;
    assert!(
        said.starts_with(&format!("an upgrade of this database was interrupted in migration {newest} and")),
        "{said}"
    );
    migration("success = true, checksum = '\\x00'").await;
    let said = refused(options.clone()).await;
    let database = options.get_database().expect("a database");
    let other = |version: i64| {
        format!(
            "the database {database} was made by another build of landfall (its migration {version} is not this one's): export what \
             you need with that build (`landfall report assignments --batch NAME -o csv`), then start this one on an empty database \
             or another --data-dir"
        )
    };
    assert_eq!(said, other(newest), "the same number, and another content");
    // Before the first release, migrations were numbered by time.
    let by_time = 20_261_121_000_001;
    pool.execute(AssertSqlSafe(format!("update _sqlx_migrations set version = {by_time} where version = {newest}")))
        .await
        .expect("number by time");
    assert_eq!(refused(options.clone()).await, other(by_time), "it is not newer");
    // The tables of all migrations exist, but only the first migration is recorded.
    pool.execute("delete from _sqlx_migrations where version > 1").await.expect("forget");
    let said = refused(options.clone()).await;
    assert!(said.starts_with("migration 2 does not fit the tables of this database ("), "{said}");
    assert!(
        said.ends_with(
            "already exists), which were changed: undo the change, or restore a backup into an empty database"
        ),
        "{said}"
    );
    let standby = refused(options.options([("default_transaction_read_only", "on")])).await;
    assert!(standby.ends_with(" is read-only: name the primary server instead of a standby"), "{standby}");
}

#[test]
fn every_table_and_every_column_is_explained() {
    for migration in store::MIGRATOR.iter() {
        let sql = migration.sql.as_str();
        let (mut in_table, mut explained) = (false, false);
        for line in sql.lines() {
            let column = in_table
                && line
                    .strip_prefix("    ")
                    .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_lowercase()))
                && !line.starts_with("    constraint ")
                && !line.starts_with("    primary key ");
            let table = line.starts_with("create table ");
            assert!(explained || line.contains("--") || !(column || table), "migration {}: {line}", migration.version);
            in_table = table || (in_table && line != ");");
            explained = line.trim_start().starts_with("-- ");
        }
    }
}

#[sqlx::test(migrator = "store::MIGRATOR")]
async fn no_statement_waits_for_ever(pool: PgPool) {
    let db = Db::open((*pool.connect_options()).clone(), Share::Fleet).await.expect("open");
    let mut opened = db.read("read settings").await.expect("connect");
    for (setting, expected) in [("statement_timeout", "1min"), ("idle_in_transaction_session_timeout", "1min")] {
        let found: String = sqlx::query_scalar("select current_setting($1)")
            .bind(setting)
            .fetch_one(&mut *opened)
            .await
            .expect("read a setting");
        assert_eq!(found, expected, "{setting}");
    }
    drop(opened);
    db.close().await;
}
