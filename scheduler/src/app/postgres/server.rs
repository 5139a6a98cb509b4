//! Runs the server of the private Postgres: checks whether it could start, waits for a former
//! server, starts the process and waits until it answers, makes the database, and stops it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection};
use tokio::sync::watch;

use super::cluster::{self, Found, PidFile, SocketDir, down};
use super::programs_and_user::{Account, Binaries, PostgresError, USER};

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
    /// Starts the server of this data directory, initialises the cluster if it is missing, and
    /// waits until the server answers.
    ///
    /// Waits for a previous server that is still shutting down. The caller ensures that only one
    /// process at a time uses the directory.
    ///
    /// # Errors
    /// See [`PostgresError`], whose messages say what the operator can do.
    pub async fn start(data_dir: &Path) -> Result<Self, PostgresError> {
        Self::start_with(data_dir, &[], &[]).await
    }

    /// Like [`PrivatePostgres::start`], with `settings` that override the default settings, and
    /// variables for the server's environment. For tests.
    ///
    /// # Errors
    /// See [`PrivatePostgres::start`].
    pub async fn start_with(
        data_dir: &Path,
        settings: &[&str],
        environment: &[(String, String)],
    ) -> Result<Self, PostgresError> {
        let data_dir = std::path::absolute(data_dir).with_context(|| format!("find {}", data_dir.display()))?;
        // The preparation runs programs and may wait for a previous server, so it must not block
        // the runtime's threads.
        let prepared = tokio::task::spawn_blocking(move || PreparedServer::make(&data_dir)).await;
        let prepared = prepared.context("prepare the private Postgres")??;
        let server = prepared.spawn(settings, environment)?;
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
        Ok(cluster::running_socket(&Self::cluster(data_dir))?.map(|socket| options_for(&socket, DATABASE)))
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
        .port(cluster::PORT)
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
        wait_for_former_server(&cluster)?;
        let socket = SocketDir::make(data_dir, &account)?;
        Ok(Self { account, binaries, cluster, socket, log: data_dir.join("postgres.log") })
    }

    fn spawn(&self, more: &[&str], environment: &[(String, String)]) -> anyhow::Result<ServerProcess> {
        let mut settings = cluster::settings(self.socket.path());
        settings.extend(more.iter().map(|setting| (*setting).to_owned()));
        let postgres = self.binaries.postgres();
        let mut command = match environment {
            [] => self.account.command(&postgres),
            // Only the server itself gets the variables, and not setpriv, which runs as root.
            _ => {
                let mut command = self.account.command(Path::new("env"));
                command.args(environment.iter().map(|(name, value)| format!("{name}={value}"))).arg(&postgres);
                command
            }
        };
        command.arg("-D").arg(&self.cluster);
        for setting in settings {
            command.arg("-c").arg(setting);
        }
        ServerProcess::spawn(command, &postgres, &self.log)
    }
}

/// The server that would be used for a data directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckedPostgres {
    pub(crate) program: PathBuf,
    pub(crate) major: String,
    /// Whether the cluster already exists.
    pub(crate) made: bool,
}

impl PrivatePostgres {
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
        let binaries = cluster::fitting_binaries(&cluster, data_dir)?;
        let made = cluster::found(&cluster, &account)? == Found::Cluster;
        let major = binaries.major().to_owned();
        Ok(CheckedPostgres { program: binaries.postgres(), major, made })
    }
}

/// Maximum time that a previous server may take to stop after its scheduler has ended.
const FORMER_SERVER_PATIENCE: Duration = Duration::from_secs(30);
/// The interval at which a previous server is checked while it stops.
const FORMER_SERVER_POLL: Duration = Duration::from_millis(50);

/// Waits until no server uses the cluster. If the previous scheduler was killed, its server may
/// still be shutting down.
fn wait_for_former_server(cluster: &Path) -> anyhow::Result<()> {
    let begun = Instant::now();
    while let Some(pid) = former_server(cluster)? {
        let (path, waited) = (cluster.display(), FORMER_SERVER_PATIENCE.as_secs());
        ensure!(
            begun.elapsed() <= FORMER_SERVER_PATIENCE,
            "the Postgres process {pid} of a former scheduler still uses {path} after {waited} s: stop that process, \
             then start again"
        );
        std::thread::sleep(FORMER_SERVER_POLL);
    }
    Ok(())
}

/// The PID of the server that `postmaster.pid` names; `None` if that server is not running.
///
/// After a reboot another process may have the same PID, and Postgres would refuse to start while
/// that process runs. Therefore the file is removed if its PID belongs to another process. Two
/// servers still cannot use the cluster at the same time, because Postgres also checks whether the
/// shared memory of a previous server is in use.
fn former_server(cluster: &Path) -> anyhow::Result<Option<Pid>> {
    match cluster::read_pid_file(cluster)? {
        PidFile::Over => return Ok(None),
        PidFile::Of(pid, _) => return Ok(Some(pid)),
        PidFile::Outdated => {}
    }
    let path = cluster.join(cluster::PID_FILE);
    match fs::remove_file(&path) {
        Ok(()) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(anyhow!(error).context(format!("remove {}", path.display()))),
    }
}

/// A server process, which ends when the scheduler's process ends.
///
/// The kernel sends the parent-death signal when the *thread* that spawned the child ends.
/// Therefore a separate thread spawns the server and lives as long as the server. The server has
/// its own process group, so that Ctrl-C at the terminal reaches only the scheduler. The scheduler
/// needs the database until its services and jobs have ended.
#[derive(Debug)]
struct ServerProcess {
    pid: Pid,
    /// How the server ended; `None` while it runs.
    ended: watch::Receiver<Option<String>>,
}

impl ServerProcess {
    fn spawn(mut command: Command, postgres: &Path, log: &Path) -> anyhow::Result<Self> {
        let log_file = File::options().write(true).create(true).truncate(true).mode(0o600).open(log);
        let log_file = log_file.with_context(|| format!("open {}", log.display()))?;
        let log_again = log_file.try_clone().with_context(|| format!("open {}", log.display()))?;
        command.process_group(0).stdout(Stdio::from(log_file)).stderr(Stdio::from(log_again));

        let (started, starting) = mpsc::sync_channel(1);
        let (ending, ended) = watch::channel(None);
        std::thread::Builder::new()
            .name("private-postgres".to_owned())
            .spawn(move || mind(command, &started, &ending))
            .with_context(|| format!("start a thread for {}", postgres.display()))?;
        let id = starting.recv().context("start Postgres: its thread died")?.context("run setpriv")?;
        Ok(Self { pid: Pid::from_raw(id), ended })
    }

    /// Waits until the server has ended. Returns how it ended.
    async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(status) => status.clone().unwrap_or_default(),
            Err(_) => "its thread died".to_owned(),
        }
    }

    /// Requests a fast shutdown: connections are closed and all data are written.
    fn interrupt(&self) {
        self.signal(Signal::SIGINT);
    }

    /// Requests an immediate shutdown. The next start then recovers the data.
    fn quit(&self) {
        self.signal(Signal::SIGQUIT);
    }

    fn signal(&self, signal: Signal) {
        // Only a running server is signalled, because another process may have the PID of a server
        // that has ended.
        if self.ended.borrow().is_none()
            && let Err(errno) = kill(self.pid, signal)
        {
            tracing::warn!(pid = self.pid.as_raw(), "the private Postgres could not be signalled: {errno}");
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.interrupt();
    }
}

/// The body of the server's thread: spawns the server and waits until it ends.
fn mind(
    mut command: Command,
    started: &mpsc::SyncSender<std::io::Result<i32>>,
    ending: &watch::Sender<Option<String>>,
) {
    let spawned = command.spawn();
    let mut child: Child = match spawned {
        Ok(child) => child,
        Err(error) => {
            // The receiver is waiting for this message, so sending cannot fail.
            drop(started.send(Err(error)));
            return;
        }
    };
    let id = i32::try_from(child.id()).map_err(std::io::Error::other);
    drop(started.send(id));
    let status = match child.wait() {
        Ok(status) => status.to_string(),
        Err(error) => format!("wait: {error}"),
    };
    ending.send_replace(Some(status));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_number_that_is_anothers_by_now_does_not_hold_the_cluster() {
        let base = tempfile::tempdir().unwrap();
        let pid_file = base.path().join(cluster::PID_FILE);
        // The PID of this process, which is running but is not a Postgres server in that directory.
        fs::write(&pid_file, format!("{}\n{}\n", std::process::id(), base.path().display())).unwrap();
        assert_eq!(former_server(base.path()).unwrap(), None);
        assert!(!pid_file.exists());
    }

    #[test]
    fn a_former_server_is_waited_for() {
        let base = tempfile::tempdir().unwrap();
        // A server is recognised by its PID and its working directory.
        let mut former = std::process::Command::new("sleep").arg("3").current_dir(base.path()).spawn().unwrap();
        fs::write(base.path().join(cluster::PID_FILE), format!("{}\n", former.id())).unwrap();
        assert!(former_server(base.path()).unwrap().is_some());
        wait_for_former_server(base.path()).unwrap();
        assert!(former.try_wait().unwrap().is_some());
    }
}
