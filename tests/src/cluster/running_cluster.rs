//! Holds the world, the processes, the database and the files of a running cluster. The files are
//! kept after a failed test.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::unistd::Pid;
use sqlx::PgPool;
use tempfile::TempDir;
use tokio::sync::Mutex;

use super::binaries::Binaries;
use super::database::{ServerDatabase, SharedPostgres};
use super::process::Process;
use super::scheduler::SchedulerNode;
use crate::evidence::batch_record::{self, BatchRecord};
use crate::world::World;

#[derive(Debug)]
pub struct Cluster {
    pub world: World,
    /// Connections for the lab's own queries.
    pub pool: PgPool,
    pub schedulers: Vec<SchedulerNode>,
    /// The Postgres that the lab started for the schedulers, if it started one.
    pub postgres: Option<Arc<Mutex<SharedPostgres>>>,
    /// The database on a server that was already running, if the schedulers use one.
    pub(super) database: Option<ServerDatabase>,
    pub(super) agents: Vec<Process>,
    /// Extra environment variables of agents. The key is the agent's index.
    pub environment: BTreeMap<usize, Vec<(String, String)>>,
    pub(super) binaries: Binaries,
    pub(super) logs: PathBuf,
    pub(super) directory: TempDir,
}

impl Cluster {
    pub async fn batch_record(&self, batch: &str) -> anyhow::Result<BatchRecord> {
        batch_record::batch_record(&self.pool, batch).await
    }

    pub fn agent_names(&self) -> Vec<String> {
        self.world.scenario().agents.iter().map(|agent| agent.name.clone()).collect()
    }

    pub fn site_names(&self) -> Vec<String> {
        (0..self.world.scenario().sites.len()).map(|site| self.world.site_name(site)).collect()
    }

    /// Keeps the temporary directory after the cluster is dropped, and prints the directory's path.
    pub fn keep_files(&mut self) {
        self.directory.disable_cleanup(true);
        eprintln!("the cluster's files are kept in {}", self.directory.path().display());
    }

    pub fn folder(&self) -> &Path {
        self.directory.path()
    }

    pub fn binary(&self) -> PathBuf {
        self.binaries.landfall.clone()
    }

    pub fn pids(&self) -> (Option<Pid>, Vec<Pid>) {
        (self.schedulers[0].pid(), self.agents.iter().filter_map(Process::pid).collect())
    }

    pub fn postgres_cluster(&self) -> PathBuf {
        self.schedulers[0].data_dir().join("postgres")
    }

    pub fn logs(&self) -> &Path {
        &self.logs
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.directory.disable_cleanup(true);
            eprintln!("the cluster's files are kept in {}", self.directory.path().display());
        }
    }
}
