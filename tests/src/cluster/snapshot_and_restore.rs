//! Freezes a cluster, and restarts it from the frozen state, so that every run begins with the same
//! map and measurements. Restores a cluster from a backup, as after the loss of its scheduler and
//! database; the agents continue to run.
//!
//! The frozen state consists of files: the schedulers' data directories, which contain their
//! databases, and the agents' folders. State that processes keep only in memory (robots.txt,
//! resolved names) is lost.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use landfall_scheduler::app::postgres::PrivatePostgres;
use sqlx::PgPool;
use tokio::process::Command;

use super::postgres::private_options;
use super::running_cluster::Cluster;
use crate::evidence::batch_record;
use crate::world::World;

const SNAPSHOT: &str = "snapshot";
const AGENTS: &str = "agents";

impl Cluster {
    /// Stops every process, and copies the files. The cluster does not run until `begin_again` is
    /// called. Fails if the scheduler has no private Postgres.
    pub async fn freeze(&mut self) -> anyhow::Result<()> {
        ensure!(self.postgres.is_none() && self.database.is_none(), "only a private Postgres is frozen");
        self.halt().await?;
        let snapshot = self.folder().join(SNAPSHOT);
        std::fs::create_dir(&snapshot).with_context(|| format!("make {}", snapshot.display()))?;
        for name in self.frozen() {
            copy(self.folder().join(&name), snapshot.join(&name)).await?;
        }
        Ok(())
    }

    /// Starts the frozen database, calls `read`, and stops the database.
    pub async fn read_frozen<T>(&self, read: impl AsyncFnOnce(&PgPool) -> anyhow::Result<T>) -> anyhow::Result<T> {
        let data_dir = self.schedulers[0].data_dir();
        let running = PrivatePostgres::start(data_dir).await.context("start the frozen database")?;
        let answer = async {
            let pool = batch_record::connect(private_options(data_dir)).await?;
            let answer = read(&pool).await;
            pool.close().await;
            answer
        };
        let answer = answer.await;
        running.stop().await.context("stop the frozen database")?;
        answer
    }

    /// Restarts the frozen cluster with `capacity` slots per agent. `world` must have the same
    /// nodes and addresses as the frozen cluster.
    pub async fn begin_again(&mut self, world: World, capacity: u32) -> anyhow::Result<()> {
        let addresses = |world: &World| (world.wan.lane(), world.site_name(0), world.beacon_port());
        let (now, then) = (addresses(&world), addresses(&self.world));
        if now != then {
            world.stop().await;
            anyhow::bail!(
                "the emulated network has other addresses than before ({now:?}, {then:?}): is another lab running?"
            );
        }
        self.world = world;
        let snapshot = self.folder().join(SNAPSHOT);
        for name in self.frozen() {
            let live = self.folder().join(&name);
            if live.exists() {
                std::fs::remove_dir_all(&live).with_context(|| format!("clear {}", live.display()))?;
            }
            copy(snapshot.join(&name), live).await?;
        }
        for scheduler in &mut self.schedulers {
            scheduler.begin_again().await?;
        }
        self.pool = batch_record::connect(private_options(self.schedulers[0].data_dir())).await?;
        self.agents.clear();
        for index in 0..self.world.scenario().agents.len() {
            self.configure_agent(index, |config| {
                config.insert("capacity".to_owned(), i64::from(capacity).into());
                Ok(())
            })?;
        }
        self.start_agents().await
    }

    fn frozen(&self) -> Vec<PathBuf> {
        let schedulers = self.schedulers.iter().filter_map(|node| node.data_dir().file_name());
        schedulers.map(PathBuf::from).chain([PathBuf::from(AGENTS)]).collect()
    }
}

/// Copies a folder and keeps owners and modes, because Postgres runs as another user if the lab
/// runs as root.
async fn copy(from: PathBuf, to: PathBuf) -> anyhow::Result<()> {
    let copied = Command::new("cp").arg("-a").arg(&from).arg(&to).output().await.context("run cp")?;
    let said = String::from_utf8_lossy(&copied.stderr);
    ensure!(copied.status.success(), "copy {} to {}: {}", from.display(), to.display(), said.trim());
    Ok(())
}

impl Cluster {
    /// Kills the first scheduler, restores a backup into a new data directory, and starts a
    /// scheduler with this directory and the killed scheduler's address. Returns the output of the
    /// restore command. The scheduler must have a private Postgres.
    pub async fn crash_and_restore(&mut self, backup: &Path) -> anyhow::Result<String> {
        self.schedulers[0].process().kill().await?;
        let data_dir = self.folder().join("restored");
        let mut command = Command::new(&self.binaries.landfall);
        command.arg("--data-dir").arg(&data_dir).arg("restore").arg(backup);
        let output = command.output().await.context("run landfall restore")?;
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "landfall restore: {}", errors.trim());
        self.schedulers[0].move_to(data_dir.clone()).await?;
        self.pool.close().await;
        self.pool = batch_record::connect(private_options(&data_dir)).await?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
