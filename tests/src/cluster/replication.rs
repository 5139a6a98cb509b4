//! A Postgres server with a standby. The lab can hold back the primary's newest transactions from the
//! standby, kill the primary, and promote the standby.

use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use landfall_scheduler::app::postgres::{PrivatePostgres, tool};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};
use tempfile::TempDir;
use tokio::process::Command;

use super::postgres::{accessible_folder, postmaster, url};
use super::process::until;
use crate::machine::children;

/// Time limit for a standby to receive everything, and to be promoted.
const PATIENCE: Duration = Duration::from_secs(60);
/// The name of a server's socket in its folder.
const SOCKET: &str = ".s.PGSQL.5432";

/// A primary and its standby. Clients connect through a link to the primary's socket, so that they
/// find the promoted server.
#[derive(Debug)]
pub struct ReplicatedPostgres {
    primary: Server,
    standby: Option<Server>,
    started: u32,
    folder: TempDir,
}

#[derive(Debug)]
struct Server {
    folder: PathBuf,
    running: PrivatePostgres,
}

impl Server {
    async fn start(folder: PathBuf) -> anyhow::Result<Self> {
        let running = PrivatePostgres::start(&folder).await.context("start a server")?;
        Ok(Self { folder, running })
    }

    fn socket_folder(&self) -> anyhow::Result<PathBuf> {
        Ok(self.running.options().get_socket().context("a server without a socket")?.clone())
    }

    async fn connect(&self) -> anyhow::Result<PgConnection> {
        self.running.options().connect().await.context("connect to a server")
    }
}

impl ReplicatedPostgres {
    /// Starts both servers.
    pub async fn start() -> anyhow::Result<Self> {
        let folder = accessible_folder("landfall-lab-")?;
        let primary = folder.path().join("server-1");
        std::fs::create_dir(&primary).context("make a server's folder")?;
        let primary = Server::start(primary).await?;
        std::fs::create_dir(folder.path().join("db")).context("make the link's folder")?;
        let mut servers = Self { primary, standby: None, started: 1, folder };
        servers.link()?;
        servers.add_standby().await?;
        Ok(servers)
    }

    /// The URL of the server that is the primary at present.
    pub fn url(&self) -> anyhow::Result<String> {
        url(&self.options())
    }

    fn options(&self) -> PgConnectOptions {
        self.primary.running.options().socket(self.link_folder())
    }

    fn link_folder(&self) -> PathBuf {
        self.folder.path().join("db")
    }

    /// Lets new connections reach the primary.
    fn link(&self) -> anyhow::Result<()> {
        let (link, new) = (self.link_folder().join(SOCKET), self.link_folder().join("new"));
        std::os::unix::fs::symlink(self.primary.socket_folder()?.join(SOCKET), &new).context("link the socket")?;
        std::fs::rename(&new, &link).context("link the socket")
    }

    /// Starts a standby of the primary, and waits until the standby has everything.
    pub async fn add_standby(&mut self) -> anyhow::Result<()> {
        self.started += 1;
        let folder = self.folder.path().join(format!("server-{}", self.started));
        let (cluster, former) = (PrivatePostgres::cluster(&folder), PrivatePostgres::cluster(&self.primary.folder));
        std::fs::create_dir(&folder).context("make a server's folder")?;
        copy(&self.primary.socket_folder()?, &former, &cluster).await?;
        self.standby = Some(Server::start(folder).await?);
        self.catch_up().await
    }

    /// Waits until the standby has everything that the primary has committed so far.
    pub async fn catch_up(&self) -> anyhow::Result<()> {
        let mut conn = self.primary.connect().await?;
        let position: String = sqlx::query_scalar("select pg_current_wal_lsn()::text").fetch_one(&mut conn).await?;
        let caught_up = async || {
            let query = "select exists (select from pg_stat_replication where replay_lsn >= $1::pg_lsn)";
            let reached: bool = sqlx::query_scalar(query).bind(&position).fetch_one(&mut conn).await?;
            Ok(reached.then_some(()))
        };
        until("the standby to catch up", PATIENCE, caught_up).await
    }

    /// Suspends the process that sends transactions to the standby.
    pub async fn hold_back(&self) -> anyhow::Result<()> {
        let mut conn = self.primary.connect().await?;
        let sender: i32 = sqlx::query_scalar("select pid from pg_stat_replication").fetch_one(&mut conn).await?;
        kill(Pid::from_raw(sender), Signal::SIGSTOP).context("suspend the sender")
    }

    /// Kills the primary and promotes the standby.
    pub async fn fail_over(&mut self) -> anyhow::Result<()> {
        let server = postmaster(&self.primary.folder)?;
        for process in children(server).into_iter().chain([server]) {
            // Only the signal to the main process must succeed, because a backend may have ended
            // since it was listed.
            let killed = kill(process, Signal::SIGKILL);
            ensure!(killed.is_ok() || process != server, "kill the primary: {killed:?}");
        }
        self.primary.running.ended().await;
        self.primary = self.standby.take().context("there is no standby")?;
        let promote = sqlx::query_scalar("select pg_promote(true, 60)");
        let promoted: bool = promote.fetch_one(&mut self.primary.connect().await?).await.context("promote")?;
        ensure!(promoted, "the standby was not promoted in time");
        self.link()
    }

    pub async fn stop(self) -> anyhow::Result<()> {
        if let Some(standby) = self.standby {
            standby.running.stop().await?;
        }
        self.primary.running.stop().await
    }
}

/// Copies the cluster `from` of a running server to `to`, as the user that runs the server.
async fn copy(socket_folder: &Path, from: &Path, to: &Path) -> anyhow::Result<()> {
    let owner = std::fs::metadata(from).context("look at the primary's cluster")?;
    std::fs::DirBuilder::new().mode(0o700).create(to).context("make the standby's cluster")?;
    std::os::unix::fs::chown(to, Some(owner.uid()), Some(owner.gid())).context("give the standby's cluster away")?;
    let mut command = Command::new(tool("pg_basebackup", 13)?.program);
    command.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--username=postgres", "--host"]);
    command.arg(socket_folder).arg("--pgdata").arg(to).current_dir("/");
    if nix::unistd::geteuid().is_root() {
        command.uid(owner.uid()).gid(owner.gid());
    }
    let copied = command.output().await.context("run pg_basebackup")?;
    ensure!(copied.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&copied.stderr));
    Ok(())
}
