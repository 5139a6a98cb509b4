//! Tests the private Postgres with a real server: the server keeps committed rows, never outlives
//! its scheduler, and refuses to start in an unusable directory.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use landfall_scheduler::app::postgres::{PostgresError, PrivatePostgres};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};

use crate::serving::{Serving, ask, landfall};

/// Time limit of every wait, ample even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory that the user postgres can reach; removed when dropped.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("landfall-test-").tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// A data directory with the permissions with which `landfall up` would create it.
    fn data_dir(&self) -> PathBuf {
        let dir = self.0.path().join("data");
        if !dir.exists() {
            fs::create_dir(&dir).unwrap();
            fs::set_permissions(&dir, Permissions::from_mode(0o711)).unwrap();
        }
        dir
    }
}

async fn count(options: &PgConnectOptions) -> i64 {
    let mut connection = options.connect().await.unwrap();
    let count = sqlx::query_scalar("select count(*) from kept").fetch_one(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    count
}

#[tokio::test]
async fn rows_survive_a_stop_and_a_start() {
    let place = Place::new();
    let postgres = PrivatePostgres::start(&place.data_dir()).await.unwrap();
    let mut connection = postgres.options().connect().await.unwrap();
    sqlx::query("create table kept (n integer)").execute(&mut connection).await.unwrap();
    sqlx::query("insert into kept select generate_series(1, 100)").execute(&mut connection).await.unwrap();
    postgres.stop().await.unwrap();
    assert!(!place.data_dir().join("postgres/postmaster.pid").exists());

    let postgres = PrivatePostgres::start(&place.data_dir()).await.unwrap();
    assert_eq!(count(&postgres.options()).await, 100);
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn nobody_else_can_reach_the_socket_and_nothing_listens_on_tcp() {
    let place = Place::new();
    let postgres = PrivatePostgres::start(&place.data_dir()).await.unwrap();
    let run = fs::metadata(place.data_dir().join("run")).unwrap();
    assert_eq!(run.permissions().mode() & 0o777, 0o700);
    let mut connection = postgres.options().connect().await.unwrap();
    let ask = |setting: &'static str| sqlx::query_scalar::<_, String>("select current_setting($1)").bind(setting);
    assert_eq!(ask("listen_addresses").fetch_one(&mut connection).await.unwrap(), "");
    assert_eq!(ask("fsync").fetch_one(&mut connection).await.unwrap(), "on");
    assert_eq!(ask("server_encoding").fetch_one(&mut connection).await.unwrap(), "UTF8");
    drop(connection);
    postgres.stop().await.unwrap();
}

#[tokio::test]
async fn a_cluster_of_another_major_version_is_refused_by_name() {
    let place = Place::new();
    let cluster = place.data_dir().join("postgres");
    fs::create_dir(&cluster).unwrap();
    fs::write(cluster.join("PG_VERSION"), "9\n").unwrap();
    let error = PrivatePostgres::start(&place.data_dir()).await.unwrap_err();
    let said = error.to_string();
    assert!(said.contains("was made by Postgres 9, but only Postgres 1"), "{said}");
    assert_eq!(fs::read_dir(&cluster).unwrap().count(), 1, "nothing was touched");
}

#[tokio::test]
async fn a_strangers_folder_in_the_clusters_place_is_left_alone() {
    let place = Place::new();
    let cluster = place.data_dir().join("postgres");
    fs::create_dir(&cluster).unwrap();
    fs::write(cluster.join("thesis.tex"), "x").unwrap();
    let error = PrivatePostgres::start(&place.data_dir()).await.unwrap_err();
    assert!(matches!(&error, PostgresError::Foreign(named) if *named == cluster), "{error:?}");
    assert!(cluster.join("thesis.tex").exists());
}

#[tokio::test]
async fn a_parent_that_postgres_cannot_pass_is_named() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root's Postgres runs under another account");
        return;
    }
    let place = Place::new();
    let blocked = place.0.path().join("blocked");
    fs::create_dir(&blocked).unwrap();
    fs::set_permissions(&blocked, Permissions::from_mode(0o700)).unwrap();
    let data_dir = blocked.join("data");
    fs::create_dir(&data_dir).unwrap();
    let error = PrivatePostgres::start(&data_dir).await.unwrap_err();
    assert!(matches!(&error, PostgresError::Unreachable { blocked: named, .. } if *named == blocked), "{error:?}");
}

/// Starts `landfall up` and waits until it reports that it listens.
pub(crate) fn landfall_up(home: &Path, data_dir: &Path) -> Serving {
    let args = ["up", "--listen", "127.0.0.1:0", "--data-dir", data_dir.to_str().unwrap()];
    let mut child = landfall(home, &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let listens = line.contains("is listening on http://127.0.0.1:");
    assert!(listens, "{}", String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap());
    Serving(child)
}

/// Options to connect to the private server of a running `landfall up`.
fn beside(data_dir: &Path) -> PgConnectOptions {
    let socket = data_dir.join("run");
    PgConnectOptions::new_without_pgpass().socket(socket).username("postgres").database("landfall")
}

fn server_of(data_dir: &Path) -> i32 {
    let text = fs::read_to_string(data_dir.join("postgres/postmaster.pid")).unwrap();
    text.lines().next().unwrap().parse().unwrap()
}

fn wait_until_gone(pid: i32) {
    let begun = Instant::now();
    while Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok() {
        assert!(begun.elapsed() < PATIENCE, "Postgres {pid} outlives its scheduler");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Writes rows until the server is gone; returns the number of acknowledged rows.
async fn write_until_cut(mut connection: PgConnection, first_hundred: tokio::sync::oneshot::Sender<()>) -> i64 {
    let mut acknowledged = 0;
    let mut first_hundred = Some(first_hundred);
    while sqlx::query("insert into kept values (1)").execute(&mut connection).await.is_ok() {
        acknowledged += 1;
        if acknowledged == 100
            && let Some(told) = first_hundred.take()
        {
            told.send(()).unwrap();
        }
    }
    acknowledged
}

#[tokio::test]
async fn a_killed_scheduler_takes_postgres_with_it_and_every_acknowledged_row_is_there_again() {
    let place = Place::new();
    let data_dir = place.0.path().join("own");
    let mut up = landfall_up(place.path(), &data_dir);
    let mut connection = beside(&data_dir).connect().await.unwrap();
    sqlx::query("create table kept (n integer)").execute(&mut connection).await.unwrap();
    let server = server_of(&data_dir);
    let (first_hundred, written) = tokio::sync::oneshot::channel();
    let writer = tokio::spawn(write_until_cut(connection, first_hundred));
    written.await.unwrap();

    up.0.kill().unwrap();
    up.0.wait().unwrap();
    // The scheduler starts again at once, so it must wait until the former server has shut down.
    let again = landfall_up(place.path(), &data_dir);
    wait_until_gone(server);
    let acknowledged = writer.await.unwrap();
    assert!(acknowledged >= 100);
    let kept = count(&beside(&data_dir)).await;
    // The last insert may have been committed although its answer was lost.
    assert!(kept == acknowledged || kept == acknowledged + 1, "{acknowledged} acknowledged, {kept} kept");
    drop(again);
}

#[test]
fn a_data_directory_in_use_is_refused_and_free_again_after_a_signal() {
    let place = Place::new();
    let data_dir = place.0.path().join("own");
    let mut up = landfall_up(place.path(), &data_dir);
    let server = server_of(&data_dir);
    let args = ["up", "--listen", "127.0.0.1:0", "--data-dir", data_dir.to_str().unwrap()];
    let refused = ask(place.path(), &args);
    assert_eq!(refused.code, 1);
    assert_eq!(
        refused.err,
        format!(
            "error: the data directory {} is in use by process {}: stop that process, or choose another with \
             --data-dir\n",
            data_dir.display(),
            up.0.id()
        )
    );

    let pid = nix::unistd::Pid::from_raw(up.0.id().try_into().unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(up.0.wait().unwrap().success());
    assert!(Path::new(&format!("/proc/{server}/exe")).read_link().is_err(), "it waits for Postgres' end");
    let client: toml::Table = fs::read_to_string(data_dir.join("client.toml")).unwrap().parse().unwrap();
    assert!(client["scheduler"].as_str().unwrap().starts_with("http://127.0.0.1:"));
    assert_eq!(fs::metadata(data_dir.join("client.toml")).unwrap().permissions().mode() & 0o777, 0o600);
}
