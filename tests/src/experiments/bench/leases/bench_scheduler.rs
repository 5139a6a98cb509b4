//! Starts a scheduler for benchmarks, with a database and enrolled agents of its own.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use landfall_scheduler::app::client_file::ClientFile;
use landfall_scheduler::store;
use sqlx::PgPool;
use tokio::process::Command;

use super::seed;
use crate::cluster::Binaries;
use crate::cluster::postgres::{SharedPostgres, accessible_folder};
use crate::cluster::process::{Process, until};

/// Time limit for the start and for the end of a scheduler.
const PATIENCE: Duration = Duration::from_secs(120);
/// The scheduler's configuration. Sessions live longer than the benchmark, because agents send no
/// heartbeats.
const CONFIG: &str = "contact_url = 'https://lab.test/crawler'\n[lease]\nheartbeat_interval = '1m'\nlife = '1h'\n";

/// The database, the agents' credentials and the folder of a scheduler.
pub(in crate::experiments::bench) struct BenchScheduler {
    pub(in crate::experiments::bench) pool: PgPool,
    pub(super) postgres: SharedPostgres,
    pub(super) credentials: Vec<String>,
    /// This is the last field, because fields are dropped in order, and Postgres writes to the
    /// directory until it stops.
    pub(super) directory: tempfile::TempDir,
}

impl BenchScheduler {
    /// Starts the database, and enrols agents.
    pub(in crate::experiments::bench) async fn start(agents: usize) -> anyhow::Result<Self> {
        let directory = accessible_folder("landfall-bench-")?;
        std::fs::write(directory.path().join("landfall.toml"), CONFIG).context("write the configuration")?;
        let postgres = SharedPostgres::start(&directory.path().join("database")).await?;
        let pool = store::open(postgres.url().parse().context("read the database's URL")?).await?;
        let credentials = seed::agents(&pool, agents).await?;
        Ok(Self { pool, postgres, credentials, directory })
    }

    pub(in crate::experiments::bench) fn data_dir(&self) -> std::path::PathBuf {
        self.directory.path().join("scheduler")
    }

    /// Starts the scheduler, and returns its URL.
    pub(in crate::experiments::bench) async fn serve(&self) -> anyhow::Result<(Process, String)> {
        self.serve_with(&[]).await
    }

    /// Starts the scheduler with further arguments, and returns its URL.
    pub(super) async fn serve_with(&self, arguments: &[&str]) -> anyhow::Result<(Process, String)> {
        let data_dir = self.data_dir();
        let client_file = data_dir.join("client.toml");
        if client_file.exists() {
            std::fs::remove_file(&client_file).context("remove the former client.toml")?;
        }
        let mut command = Command::new(Binaries::find()?.landfall);
        command.arg("--data-dir").arg(&data_dir).args(["serve", "--listen", "127.0.0.1:0", "--database-url"]);
        command
            .arg(self.postgres.url())
            .args(arguments)
            .arg("--config")
            .arg(self.directory.path().join("landfall.toml"));
        let mut process = Process::spawn("scheduler", command, self.directory.path())?;
        until("the scheduler to start", PATIENCE, async || {
            process.ensure_running()?;
            Ok(client_file.exists().then_some(()))
        })
        .await?;
        let url = client(&data_dir)?.scheduler.first().cloned().context("client.toml names no scheduler")?;
        Ok((process, url))
    }

    pub(in crate::experiments::bench) async fn end(&self, process: &mut Process) -> anyhow::Result<()> {
        process.terminate();
        ensure!(process.wait(PATIENCE).await?.is_some(), "the scheduler did not end: {}", process.tail());
        Ok(())
    }

    pub(in crate::experiments::bench) fn token(&self) -> anyhow::Result<String> {
        Ok(client(&self.directory.path().join("scheduler"))?.token)
    }

    pub(in crate::experiments::bench) const fn postgres(&mut self) -> &mut SharedPostgres {
        &mut self.postgres
    }

    pub(in crate::experiments::bench) async fn close(mut self) -> anyhow::Result<()> {
        self.pool.close().await;
        self.postgres.stop().await
    }
}

/// A request with an operator's token.
pub(in crate::experiments::bench) fn authorized<T>(message: T, token: &str) -> anyhow::Result<tonic::Request<T>> {
    let mut request = tonic::Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse()?);
    Ok(request)
}

fn client(data_dir: &Path) -> anyhow::Result<ClientFile> {
    ClientFile::read(data_dir)?.context("the scheduler wrote no client.toml")
}
