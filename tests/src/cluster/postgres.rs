//! The Postgres databases: one that several schedulers share, which the lab can stop, kill and
//! restart, a database on a server that is already running, and the private Postgres with which
//! `lab with-postgres -- CMD...` runs a command, and which does not sync its writes to disk.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Args;
use futures_util::FutureExt as _;
use landfall_scheduler::app::postgres::PrivatePostgres;
use landfall_scheduler::store::MIGRATOR;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::process::Command;

use super::process::{POLL, interrupted};
use super::shifted_clock::ShiftedClock;
use super::small_disks::SmallDisks;
use crate::machine::{children, postmaster};

/// Postgres' error while it starts, recovers or stops.
const CANNOT_CONNECT_NOW: &str = "57P03";
const END_PATIENCE: Duration = Duration::from_secs(30);
/// Size of a disk that can be filled. Until it is filled, it takes only as much memory as its files.
const DISK_BYTES: u64 = 8 << 30;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseAction {
    /// Stops the server and starts it again, as `pg_ctl restart` does.
    Restart,
    /// Kills the server with all its processes. After a crash, `Resume` includes crash recovery.
    Crash,
    /// Starts the server if it is not running.
    Resume,
    /// Suspends all processes of the server with SIGSTOP if true, and continues them with SIGCONT
    /// if false.
    Freeze(bool),
    /// Accepts no changes if true, as a standby does, and accepts them again if false.
    ReadOnly(bool),
    /// Makes each commit wait a tenth of a second for the disk if true.
    SlowCommits(bool),
    /// Ends all connections, as an administrator can.
    EndConnections,
    /// Ends only the connections over which schedulers watch the database.
    EndWatchers,
    /// Locks rows of tasks, sites, a batch and an agent if true, as a forgotten transaction in psql
    /// does, and unlocks them if false.
    LockRows(bool),
    /// Sets the clock to the true time plus this number of seconds.
    ShiftClock(i64),
    /// Fills the disk if true. If false, makes room, and starts the server if the full disk has
    /// ended it.
    FillDisk(bool),
}

/// The beginning of the query that a scheduler sends each second.
const WATCHES: &str = "select pg_is_in_recovery()%";

/// A time in which the clock of a server was wrong.
#[derive(Debug, Clone, Copy)]
pub struct ClockFault {
    pub from: Instant,
    /// `None` while the clock is wrong.
    pub to: Option<Instant>,
    pub seconds: i64,
}

/// By what the lab disturbs a server, besides signals and statements.
#[derive(Debug, Clone, Copy, Default)]
pub struct ServerHandles {
    /// The server's clock can be shifted.
    pub clock: bool,
    /// The server's disk can be filled.
    pub disk: bool,
}

/// A shared server. Dropping it stops the server.
#[derive(Debug)]
pub struct SharedPostgres {
    directory: PathBuf,
    url: String,
    running: Option<PrivatePostgres>,
    /// The server's clock; `None` if it cannot be shifted.
    clock: Option<ShiftedClock>,
    pub clock_faults: Vec<ClockFault>,
    /// The server's disk; `None` if it cannot be filled.
    disk: Option<SmallDisks>,
    /// The connection that holds locked rows.
    hand: Option<PgConnection>,
}

impl SharedPostgres {
    /// Starts a server with an empty database in `directory`.
    pub async fn start(directory: &Path) -> anyhow::Result<Self> {
        Self::start_with(directory, ServerHandles::default()).await
    }

    /// Like `start`, with these handles.
    pub async fn start_with(directory: &Path, handles: ServerHandles) -> anyhow::Result<Self> {
        std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        let clock = handles.clock.then(|| ShiftedClock::new(directory.with_extension("clock"))).transpose()?;
        let disk = handles.disk.then(|| SmallDisks::mount(vec![directory.to_owned()], DISK_BYTES)).transpose()?;
        let running = launch(directory, clock.as_ref()).await?;
        let url = url(&running.options())?;
        let (running, directory) = (Some(running), directory.to_owned());
        Ok(Self { directory, url, running, clock, clock_faults: Vec::new(), disk, hand: None })
    }

    pub(super) async fn execute(&self, statements: &'static str) -> anyhow::Result<()> {
        let mut conn = self.connect().await?;
        // Without parameters, each statement is a transaction of its own.
        for statement in statements.split(';') {
            sqlx::raw_sql(statement).execute(&mut conn).await.context(statement)?;
        }
        Ok(())
    }

    /// Waits while the server recovers, because a full disk makes it crash.
    pub(super) async fn connect(&self) -> anyhow::Result<PgConnection> {
        let (options, start) = (private_options(&self.directory), Instant::now());
        loop {
            match PgConnection::connect_with(&options).await {
                Err(sqlx::Error::Database(error))
                    if error.code().as_deref() == Some(CANNOT_CONNECT_NOW) && start.elapsed() < END_PATIENCE =>
                {
                    tokio::time::sleep(POLL).await;
                }
                connected => return connected.context("connect to Postgres"),
            }
        }
    }

    /// The URL of the database, which is the same after every start.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The folder with the server's socket and data.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub async fn apply(&mut self, action: DatabaseAction) -> anyhow::Result<()> {
        match action {
            DatabaseAction::Restart => self.restart().await,
            DatabaseAction::Crash => self.crash().await,
            DatabaseAction::Resume => self.resume().await,
            DatabaseAction::Freeze(true) => self.signal(Signal::SIGSTOP),
            DatabaseAction::Freeze(false) => self.signal(Signal::SIGCONT),
            DatabaseAction::ReadOnly(true) => {
                self.execute("alter system set default_transaction_read_only = on; select pg_reload_conf()").await
            }
            DatabaseAction::ReadOnly(false) => {
                self.execute("alter system reset default_transaction_read_only; select pg_reload_conf()").await
            }
            DatabaseAction::SlowCommits(true) => {
                let slow = "alter system set commit_siblings = 0; alter system set commit_delay = 100000; select pg_reload_conf()";
                self.execute(slow).await
            }
            DatabaseAction::SlowCommits(false) => {
                self.execute("alter system reset commit_delay; select pg_reload_conf()").await
            }
            DatabaseAction::EndConnections => self.end_connections("%").await,
            DatabaseAction::EndWatchers => self.end_connections(WATCHES).await,
            DatabaseAction::LockRows(true) => self.lock_rows().await,
            DatabaseAction::LockRows(false) => {
                self.hand = None;
                Ok(())
            }
            DatabaseAction::ShiftClock(seconds) => self.shift_clock(seconds),
            DatabaseAction::FillDisk(true) => self.disk()?.fill(0),
            DatabaseAction::FillDisk(false) => {
                self.disk()?.free(0)?;
                self.await_answer().await
            }
        }
    }

    /// Starts the server if it has ended or ends soon, and waits until it answers.
    async fn await_answer(&mut self) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            self.resume().await?;
            match self.connect().await {
                Ok(_) => return Ok(()),
                Err(error) if begun.elapsed() > END_PATIENCE => return Err(error),
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    fn disk(&self) -> anyhow::Result<&SmallDisks> {
        self.disk.as_ref().context("the server's disk cannot be filled")
    }

    fn shift_clock(&mut self, seconds: i64) -> anyhow::Result<()> {
        let now = Instant::now();
        if let Some(former) = self.clock_faults.last_mut() {
            former.to.get_or_insert(now);
        }
        if seconds != 0 {
            self.clock_faults.push(ClockFault { from: now, to: None, seconds });
        }
        self.clock.as_ref().context("the server's clock cannot be shifted")?.shift(seconds)
    }

    /// Ends the connections whose last query is like `query`.
    async fn end_connections(&self, query: &str) -> anyhow::Result<()> {
        let end = "
            select pg_terminate_backend(pid) from pg_stat_activity
            where backend_type = 'client backend' and pid <> pg_backend_pid() and query like $1";
        let mut conn = self.connect().await?;
        sqlx::query(end).bind(query).execute(&mut conn).await.context("end connections")?;
        Ok(())
    }

    async fn lock_rows(&mut self) -> anyhow::Result<()> {
        let mut conn = self.connect().await?;
        for statement in [
            "begin",
            "select from tasks where state in ('assigned', 'leased') order by random() limit 20 for update skip locked",
            "select from sites order by random() limit 3 for update skip locked",
            "select from batches order by random() limit 1 for update skip locked",
            "select from agents order by random() limit 1 for update skip locked",
        ] {
            conn.execute(statement).await.context(statement)?;
        }
        self.hand = Some(conn);
        Ok(())
    }

    async fn restart(&mut self) -> anyhow::Result<()> {
        if let Some(running) = self.running.take() {
            running.stop().await.context("stop Postgres")?;
        }
        self.resume().await
    }

    async fn crash(&mut self) -> anyhow::Result<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        self.signal(Signal::SIGKILL)?;
        let ended = tokio::time::timeout(END_PATIENCE, running.ended()).await;
        ensure!(ended.is_ok(), "Postgres did not end within {} s of SIGKILL", END_PATIENCE.as_secs());
        Ok(())
    }

    async fn resume(&mut self) -> anyhow::Result<()> {
        let runs = self.running.as_ref().is_some_and(|running| running.ended().now_or_never().is_none());
        if !runs {
            self.running = Some(launch(&self.directory, self.clock.as_ref()).await.context("start Postgres again")?);
        }
        Ok(())
    }

    /// Sends a signal to all processes of the server.
    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let server = self.pid()?;
        for process in children(server).into_iter().chain([server]) {
            // Only the signal to the main process must succeed, because a backend may have ended
            // since it was listed.
            let signalled = kill(process, signal);
            ensure!(signalled.is_ok() || process != server, "signal Postgres: {signalled:?}");
        }
        Ok(())
    }

    /// Fails if the server did not stop in time and had to be killed.
    pub async fn stop(&mut self) -> anyhow::Result<()> {
        match self.running.take() {
            Some(running) => running.stop().await,
            None => Ok(()),
        }
    }

    /// The process id of the server's main process.
    pub fn pid(&self) -> anyhow::Result<Pid> {
        postmaster(&PrivatePostgres::cluster(&self.directory)).context("find the server's process")
    }
}

async fn launch(directory: &Path, clock: Option<&ShiftedClock>) -> anyhow::Result<PrivatePostgres> {
    let environment = clock.map_or(Ok(Vec::new()), ShiftedClock::environment)?;
    Ok(PrivatePostgres::start_with(directory, &[], &environment).await?)
}

/// A database on a server that is already running. The database begins as a copy of the server's
/// template database.
#[derive(Debug)]
pub struct ServerDatabase {
    server: PgConnectOptions,
    name: String,
}

impl ServerDatabase {
    pub async fn create(server: &str) -> anyhow::Result<Self> {
        let server: PgConnectOptions = server.parse().context("the server's URL")?;
        let name = format!("lab_{:032x}", rand::random::<u128>());
        let database = Self { server, name };
        database.execute(format!("create database {}", database.name)).await?;
        Ok(database)
    }

    pub fn options(&self) -> PgConnectOptions {
        self.server.clone().database(&self.name)
    }

    pub fn url(&self) -> anyhow::Result<String> {
        url(&self.options())
    }

    /// Removes the database, even if killed processes left connections open.
    pub async fn remove(self) -> anyhow::Result<()> {
        self.execute(format!("drop database {} with (force)", self.name)).await
    }

    async fn execute(&self, statement: String) -> anyhow::Result<()> {
        let mut conn = PgConnection::connect_with(&self.server).await.context("connect to the server")?;
        conn.execute(AssertSqlSafe(statement.clone())).await.context(statement)?;
        conn.close().await.context("disconnect from the server")
    }
}

/// The private Postgres of a data directory.
pub fn private_options(data_dir: &Path) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .socket(data_dir.join("run"))
        .username("postgres")
        .database("landfall")
        .ssl_mode(PgSslMode::Disable)
}

/// Makes a temporary directory that other users may enter, because Postgres runs as another user if
/// the lab runs as root. If `TMPDIR` is private, the directory is in `/tmp`.
pub fn accessible_folder(prefix: &str) -> anyhow::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).permissions(std::fs::Permissions::from_mode(0o755));
    let preferred = std::env::temp_dir();
    let is_open = |folder: &Path| folder.metadata().is_ok_and(|found| found.permissions().mode() & 0o001 != 0);
    let base = if preferred.ancestors().all(is_open) { preferred } else { PathBuf::from("/tmp") };
    builder.tempdir_in(&base).with_context(|| format!("make a temporary directory in {}", base.display()))
}

/// The URL of a private Postgres. Fails if the path of the server's socket needs escaping in a URL.
pub fn url(options: &PgConnectOptions) -> anyhow::Result<String> {
    let socket = options.get_socket().context("the private Postgres has no socket")?;
    let folder = socket.to_str().context("the socket's path is not text")?;
    ensure!(folder.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte)), "odd path {folder}");
    let database = options.get_database().context("the private Postgres has no database")?;
    Ok(format!("postgres://{}@localhost:{}/{database}?host={folder}", options.get_username(), options.get_port()))
}

/// Settings with which making and dropping a test's database takes a third of the time, and many
/// databases can be used at once. The server may lose its data if the machine fails.
const VOLATILE: [&str; 4] = ["fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=400"];
/// The database that Postgres copies for `create database`.
const TEMPLATE: &str = "template1";

/// Arguments of `lab with-postgres`.
#[derive(Debug, Clone, Args)]
pub struct WithPostgresArgs {
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Runs the command and returns its exit code.
pub async fn with_postgres(args: &WithPostgresArgs) -> anyhow::Result<ExitCode> {
    let (program, arguments) = args.command.split_first().context("no command was given after --")?;
    let directory = accessible_folder("landfall-lab-")?;
    let postgres = PrivatePostgres::start_with(directory.path(), &VOLATILE, &[]).await?;
    prepare(postgres.options().database(TEMPLATE)).await?;
    let url = url(&postgres.options())?;
    let mut command = Command::new(program);
    command.args(arguments).env("DATABASE_URL", url).kill_on_drop(true);
    let ended = tokio::select! {
        status = command.status() => Some(status.with_context(|| format!("run {program}"))),
        // The lab does not forward SIGINT, because the command is in the same process group and
        // receives SIGINT itself.
        () = interrupted() => None,
    };
    postgres.stop().await?;
    let Some(status) = ended.transpose()? else { return Ok(ExitCode::from(130)) };
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// Installs the schema in the template database, so that databases created for tests need no
/// migrations.
async fn prepare(template: PgConnectOptions) -> anyhow::Result<()> {
    let mut conn = PgConnection::connect_with(&template).await.context("connect to the template of new databases")?;
    MIGRATOR.run(&mut conn).await.context("give the schema to new databases")?;
    // Postgres does not copy a template while a connection to it is open.
    conn.close().await.context("leave the template of new databases")
}
