//! The private Postgres of `landfall up`: finds the programs, initialises the cluster, and starts,
//! watches and stops the server.
//!
//! In the data directory, Postgres uses `postgres/` (the cluster), `run/` (the socket, mode 0700;
//! the server does not listen on TCP) and `postgres.log` (the log since the newest start). The
//! server never outlives the scheduler: when the scheduler ends for any reason, the kernel sends
//! the server SIGINT (a fast shutdown), see `postgres/server.rs`. `fsync` stays on, so that
//! committed rows survive a crash. The module `data_dir`, not this one, ensures that only one
//! process uses the data directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use nix::unistd::Uid;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection};

mod account;
mod binaries;
mod cluster;
mod end_cause;
mod error;
mod former_server;
mod pid_file;
mod server;
mod settings;

pub use binaries::{Tool, tool};
pub(crate) use end_cause::LEAST_ROOM;
pub use error::PostgresError;

use account::{Account, USER};
use binaries::Binaries;
use cluster::{Found, SocketDir};
use end_cause::down;
use server::Server;

/// The name of the scheduler's database.
const DATABASE: &str = "landfall";
/// The cluster's folder in a data directory.
const CLUSTER: &str = "postgres";
/// The oldest major version that works: the log of events needs `pg_current_xact_id`.
pub(crate) const OLDEST_MAJOR: u32 = 13;
/// Interval between attempts to connect to a server that is starting.
const START_POLL: Duration = Duration::from_millis(50);

/// The server that would be used for a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckedPostgres {
    pub(crate) program: PathBuf,
    pub(crate) major: String,
    /// Whether the cluster already exists.
    pub(crate) made: bool,
}

/// A running private Postgres. Dropping this value asks the server to stop;
/// [`PrivatePostgres::stop`] also waits until the server has ended.
#[derive(Debug)]
pub struct PrivatePostgres {
    server: Server,
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

    /// Checks whether a scheduler that runs as the user `scheduler` could start the server of this
    /// data directory, which need not exist yet. Changes nothing. Runs programs, so it may block.
    ///
    /// # Errors
    /// See [`PrivatePostgres::start`].
    pub(crate) fn check(data_dir: &Path, scheduler: Uid) -> Result<CheckedPostgres, PostgresError> {
        let account = Account::of_server_of(scheduler)?;
        Account::check_programs()?;
        let present = data_dir.ancestors().find(|folder| folder.exists()).unwrap_or(data_dir);
        account.check_reach(present)?;
        let cluster = Self::cluster(data_dir);
        let binaries = PreparedServer::binaries(&cluster, data_dir)?;
        let made = cluster::found(&cluster, &account)? == Found::Cluster;
        let major = binaries.major().to_owned();
        Ok(CheckedPostgres { program: binaries.postgres(), major, made })
    }

    /// The cluster's folder in a data directory.
    pub fn cluster(data_dir: &Path) -> PathBuf {
        data_dir.join(CLUSTER)
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
        if tokio::time::timeout(server::STOP_PATIENCE, self.server.ended()).await.is_ok() {
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
            answered = tokio::time::timeout(server::START_PATIENCE, answering) => {
                answered.map_err(|_| self.down(&format!("has not answered for {} s", server::START_PATIENCE.as_secs())))
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
        down(&self.log.with_file_name(CLUSTER), &self.log, what)
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
        let binaries = Self::binaries(&cluster, data_dir)?;
        cluster::initialise(&cluster, &binaries, &account)?;
        former_server::wait(&cluster)?;
        let socket = SocketDir::make(data_dir, &account)?;
        Ok(Self { account, binaries, cluster, socket, log: data_dir.join("postgres.log") })
    }

    /// The installed server that fits the cluster. If there is no cluster yet, the newest version
    /// that is installed.
    fn binaries(cluster: &Path, data_dir: &Path) -> Result<Binaries, PostgresError> {
        let installed = binaries::installed();
        match cluster::version(cluster)? {
            Some(made_by) => binaries::of_version(installed, &made_by, data_dir),
            None => binaries::newest(installed),
        }
    }

    fn spawn(&self, more: &[&str]) -> anyhow::Result<Server> {
        let mut settings = settings::settings(self.socket.path());
        settings.extend(more.iter().map(|setting| (*setting).to_owned()));
        Server::spawn(&self.account, &self.binaries.postgres(), &self.cluster, &settings, &self.log)
    }
}
