//! Starts the private Postgres: prepares its files, spawns its server, waits until it answers, and
//! makes the database. Stops it at the end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection};

use super::account::{Account, USER};
use super::binaries::Binaries;
use super::cluster::{self, SocketDir};
use super::end_cause::down;
use super::error::PostgresError;
use super::server_process::ServerProcess;
use super::{former_server, pid_file, settings};

/// The name of the scheduler's database.
const DATABASE: &str = "landfall";
/// Interval between attempts to connect to a server that is starting.
const START_POLL: Duration = Duration::from_millis(50);
/// Maximum time for the server to start. This time is enough even after a crash, when the server
/// replays up to `max_wal_size` of its log.
const START_PATIENCE: Duration = Duration::from_secs(120);
/// Maximum time for a fast shutdown. After this time, the server is shut down immediately, and the
/// next start recovers the data.
const STOP_PATIENCE: Duration = Duration::from_secs(60);

/// A running private Postgres. Dropping this value asks the server to stop;
/// [`PrivatePostgres::stop`] also waits until the server has ended.
#[derive(Debug)]
pub struct PrivatePostgres {
    server: ServerProcess,
    socket: SocketDir,
    log: PathBuf,
}

impl PrivatePostgres {
    /// Starts a server for tests, with connections for many databases. The server may lose its data
    /// if the machine fails. With these settings, making and dropping a test's database takes a
    /// third of the time.
    ///
    /// # Errors
    /// See [`PrivatePostgres::start`].
    pub async fn start_volatile(data_dir: &Path) -> Result<Self, PostgresError> {
        let volatile = ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=400"];
        Self::start_with(data_dir, &volatile).await
    }

    /// Starts the server of this data directory, initialises the cluster if it is missing, and
    /// waits until the server answers.
    ///
    /// Waits for a previous server that is still shutting down. The caller ensures that only one
    /// process at a time uses the directory.
    ///
    /// # Errors
    /// See [`PostgresError`], whose messages say what the operator can do.
    pub async fn start(data_dir: &Path) -> Result<Self, PostgresError> {
        Self::start_with(data_dir, &[]).await
    }

    /// Like [`PrivatePostgres::start`], with `settings` that override the default settings.
    async fn start_with(data_dir: &Path, settings: &[&str]) -> Result<Self, PostgresError> {
        let data_dir = std::path::absolute(data_dir).with_context(|| format!("find {}", data_dir.display()))?;
        // The preparation runs programs and may wait for a previous server, so it must not block
        // the runtime's threads.
        let prepared = tokio::task::spawn_blocking(move || PreparedServer::make(&data_dir)).await;
        let prepared = prepared.context("prepare the private Postgres")??;
        let server = prepared.spawn(settings)?;
        let running = Self { server, socket: prepared.socket, log: prepared.log };
        running.wait_until_ready().await?;
        running.ensure_database().await.context("prepare the private Postgres")?;
        Ok(running)
    }

    /// Options to connect to the scheduler's database.
    pub fn options(&self) -> PgConnectOptions {
        options_for(self.socket.path(), DATABASE)
    }

    /// Options to connect to the server that another process runs on this data directory; `None` if
    /// no server is running.
    pub fn running(data_dir: &Path) -> anyhow::Result<Option<PgConnectOptions>> {
        Ok(pid_file::running_socket(&Self::cluster(data_dir))?.map(|socket| options_for(&socket, DATABASE)))
    }

    /// The cluster's folder in a data directory.
    pub fn cluster(data_dir: &Path) -> PathBuf {
        cluster::folder(data_dir)
    }

    /// Waits until the server ends unexpectedly. Returns the error, with its cause if known.
    pub async fn ended(&self) -> anyhow::Error {
        let status = self.server.ended().await;
        self.down(&format!("ended ({status})"))
    }

    /// Stops the server and waits until it has ended.
    ///
    /// # Errors
    /// When an immediate shutdown was needed; the next start then recovers the data.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.server.interrupt();
        if tokio::time::timeout(STOP_PATIENCE, self.server.ended()).await.is_ok() {
            return Ok(());
        }
        self.server.quit();
        self.server.ended().await;
        Err(self.down("did not stop in time and was shut down immediately"))
    }

    async fn wait_until_ready(&self) -> anyhow::Result<()> {
        let answering = async {
            let options = options_for(self.socket.path(), USER);
            // Connections fail until the socket exists and the server has recovered its data.
            while let Err(error) = options.connect().await.map(drop) {
                tracing::trace!(%error, "the private Postgres does not answer yet");
                tokio::time::sleep(START_POLL).await;
            }
        };
        tokio::select! {
            error = self.ended() => Err(error),
            answered = tokio::time::timeout(START_PATIENCE, answering) => {
                answered.map_err(|_| self.down(&format!("has not answered for {} s", START_PATIENCE.as_secs())))
            }
        }
    }

    async fn ensure_database(&self) -> Result<(), sqlx::Error> {
        let mut connection = options_for(self.socket.path(), USER).connect().await?;
        let known: bool = sqlx::query_scalar("select exists (select from pg_database where datname = $1)")
            .bind(DATABASE)
            .fetch_one(&mut connection)
            .await?;
        if !known {
            sqlx::query("create database landfall").execute(&mut connection).await?;
        }
        connection.close().await
    }

    fn down(&self, what: &str) -> anyhow::Error {
        down(&self.log.with_file_name(cluster::FOLDER), &self.log, what)
    }
}

fn options_for(socket: &Path, database: &str) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .socket(socket)
        .port(settings::PORT)
        .username(USER)
        .database(database)
        .ssl_mode(PgSslMode::Disable)
}

/// The results of the preparations before the server is spawned.
#[derive(Debug)]
struct PreparedServer {
    account: Account,
    binaries: Binaries,
    cluster: PathBuf,
    socket: SocketDir,
    log: PathBuf,
}

impl PreparedServer {
    fn make(data_dir: &Path) -> Result<Self, PostgresError> {
        let account = Account::of_server()?;
        account.check_reach(data_dir)?;
        let cluster = PrivatePostgres::cluster(data_dir);
        let binaries = cluster::fitting_binaries(&cluster, data_dir)?;
        cluster::initialise(&cluster, &binaries, &account)?;
        former_server::wait(&cluster)?;
        let socket = SocketDir::make(data_dir, &account)?;
        Ok(Self { account, binaries, cluster, socket, log: data_dir.join("postgres.log") })
    }

    fn spawn(&self, more: &[&str]) -> anyhow::Result<ServerProcess> {
        let mut settings = settings::settings(self.socket.path());
        settings.extend(more.iter().map(|setting| (*setting).to_owned()));
        ServerProcess::spawn(&self.account, &self.binaries.postgres(), &self.cluster, &settings, &self.log)
    }
}
