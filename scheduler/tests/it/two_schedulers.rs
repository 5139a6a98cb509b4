//! Runs two `landfall serve` processes on one database, as in the README, and sends requests to
//! them with the operator's commands.

use std::fs;

use sqlx::{ConnectOptions as _, PgPool};

use super::serving::{ask, client_file, serve, until};

#[sqlx::test(migrator = "landfall_scheduler::store::MIGRATOR")]
async fn two_serve_one_database_and_either_may_be_killed(pool: PgPool) {
    let url = pool.connect_options().to_url_lossy().to_string();
    let home = tempfile::tempdir().unwrap();
    let home = home.path().to_owned();
    tokio::task::spawn_blocking(move || {
        let mut first = serve(&home, &url, "one");
        let refused = ask(&home, &["serve", "--database-url", &url, "--data-dir", "two", "--listen", "127.0.0.1:0"]);
        let said = refused.err;
        assert_ne!(refused.code, 0);
        assert!(said.contains("copy operator-token and the folder tls") && said.contains("two"), "{said}");

        fs::copy(home.join("one/operator-token"), home.join("two/operator-token")).unwrap();
        let _second = serve(&home, &url, "two");
        let both = |data_dir| client_file(&home, data_dir).matches("http://127.0.0.1:").count() == 2;
        until("both know of both", || both("one") && both("two"));
        let enrol = ["agents", "enrol", "--city", "Harbin", "--carrier", "CERNET", "--data-dir", "one"];
        let printed = ask(&home, &enrol).out;
        let schedulers = printed.split_whitespace().find(|word| word.starts_with("http://")).unwrap();
        assert_eq!(schedulers.split(',').count(), 2, "{printed}");

        let known = client_file(&home, "one");
        first.0.kill().unwrap();
        first.0.wait().unwrap();
        let listed = ask(&home, &["agents", "list", "--data-dir", "one"]);
        assert_eq!(listed.code, 0, "the other was asked: {}\n{known}", listed.err);
        assert!(listed.out.starts_with("no agents yet"));
        until("the second is alone", || client_file(&home, "two").matches("http://127.0.0.1:").count() == 1);
    })
    .await
    .unwrap();
}
