//! The standby of a Postgres server that the lab started. The lab can hold back the newest
//! transactions from it, and promote it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use landfall_scheduler::app::postgres::{PrivatePostgres, tool};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Command;

use super::postgres::SharedPostgres;
use super::process::until;

/// Time limit for a standby to receive everything.
const PATIENCE: Duration = Duration::from_secs(60);
/// The oldest version that keeps the settings of a standby in the file that `pg_basebackup` writes.
const OLDEST_WITH_STANDBYS: u32 = 13;

impl SharedPostgres {
    /// Starts a standby of this server in `directory`, in which a former server may have left files.
    pub async fn standby(&self, directory: &Path) -> anyhow::Result<Self> {
        if directory.exists() {
            std::fs::remove_dir_all(directory).with_context(|| format!("clear {}", directory.display()))?;
        }
        std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        let (primary, copy) = (PrivatePostgres::cluster(self.directory()), PrivatePostgres::cluster(directory));
        let mut copying = Command::new(tool("pg_basebackup", OLDEST_WITH_STANDBYS)?.program);
        copying.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--username=postgres"]);
        copying.arg("--host").arg(self.directory().join("run")).arg("--pgdata").arg(&copy);
        succeed(copying).await?;
        let mut giving = Command::new("chown");
        giving.arg("--recursive").arg("--reference").arg(&primary).arg(&copy);
        succeed(giving).await?;
        Self::start(directory).await
    }

    /// Makes a standby the primary.
    pub async fn promote(&self) -> anyhow::Result<()> {
        self.execute("select pg_promote()").await
    }

    /// Waits until the standby has everything that this server has committed so far.
    pub async fn catch_up(&self) -> anyhow::Result<()> {
        let mut conn = self.connect().await?;
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
        let mut conn = self.connect().await?;
        let sender: i32 = sqlx::query_scalar("select pid from pg_stat_replication").fetch_one(&mut conn).await?;
        kill(Pid::from_raw(sender), Signal::SIGSTOP).context("suspend the sender")
    }

    /// Makes this server give its next tasks and sites the numbers that the standby would give out
    /// after its promotion. Postgres logs 32 numbers ahead, so the first lost ones would not come again.
    pub async fn repeat_numbers(&self, standby: &Self) -> anyhow::Result<()> {
        let (mut ours, mut theirs) = (self.connect().await?, standby.connect().await?);
        for (read, set) in [
            ("select last_value from tasks_id_seq", "select setval('tasks_id_seq', $1)"),
            ("select last_value from sites_id_seq", "select setval('sites_id_seq', $1)"),
        ] {
            let last: i64 = sqlx::query_scalar(read).fetch_one(&mut theirs).await.context(read)?;
            sqlx::query(set).bind(last).execute(&mut ours).await.context(set)?;
        }
        Ok(())
    }
}

/// The URL of a database on two servers.
pub fn url_of_both(first: &SharedPostgres, second: &SharedPostgres) -> String {
    let folder = |url: &str| url.split_once("?host=").map_or_else(String::new, |(_, folder)| folder.to_owned());
    format!("{},{}", first.url(), folder(second.url()))
}

/// Runs a program, and fails with its error messages if it fails.
async fn succeed(mut command: Command) -> anyhow::Result<()> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let output = command.kill_on_drop(true).output().await.with_context(|| format!("run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {}", said.trim());
    Ok(())
}
