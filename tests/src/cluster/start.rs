//! Starts a cluster: its schedulers with their database, and then its agents.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use tokio::sync::Mutex;

use super::binaries::Binaries;
use super::database::{self, ServerDatabase, SharedPostgres};
use super::running_cluster::Cluster;
use super::scheduler::{SchedulerNode, SchedulerOptions};
use crate::evidence::batch_record;
use crate::world::World;

/// A scheduler's configuration for tests. With its short intervals, the scheduler detects dead
/// agents and measures sites within seconds.
pub const HURRIED: &str = "
[lease]
heartbeat_interval = '500ms'
life = '3s'
grace = '500ms'
[measure]
site_interval = '200ms'
";

#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The schedulers' configuration, as TOML.
    pub scheduler: String,
    /// Number of slots of each agent.
    pub capacity: u32,
    /// The folder of the logs; by default, a folder in the temporary directory.
    pub logs: Option<PathBuf>,
    pub database: ClusterDatabase,
}

/// Where the schedulers store their data.
#[derive(Debug, Clone)]
pub enum ClusterDatabase {
    /// One scheduler, with its private Postgres.
    Private,
    /// This number of schedulers, with a Postgres that the lab starts.
    Shared(usize),
    /// One scheduler, with a new database on the server at this URL.
    OnServer(String),
}

impl Cluster {
    /// Starts the schedulers, enrols and starts all agents, and waits until the agents are
    /// connected.
    pub async fn start(world: World, options: &ClusterOptions) -> anyhow::Result<Self> {
        let mut cluster = Self::without_agents(world, options).await?;
        cluster.enrol_all(options.capacity).await?;
        cluster.start_agents().await?;
        Ok(cluster)
    }

    /// Starts only the schedulers.
    pub async fn without_agents(world: World, options: &ClusterOptions) -> anyhow::Result<Self> {
        let binaries = Binaries::find()?;
        let directory = database::accessible_folder("landfall-lab-")?;
        let logs = options.logs.clone().unwrap_or_else(|| directory.path().join("logs"));
        std::fs::create_dir_all(&logs).with_context(|| format!("make {}", logs.display()))?;
        let config = directory.path().join("landfall.toml");
        std::fs::write(&config, &options.scheduler).context("write the schedulers' configuration")?;
        let (mut count, mut postgres, mut database) = (1, None, None);
        match &options.database {
            ClusterDatabase::Private => {}
            ClusterDatabase::Shared(schedulers) => {
                count = *schedulers;
                postgres = Some(SharedPostgres::start(&directory.path().join("database")).await?);
            }
            ClusterDatabase::OnServer(url) => database = Some(ServerDatabase::create(url).await?),
        }
        let url = match &database {
            Some(database) => Some(database.url()?),
            None => postgres.as_ref().map(|postgres| postgres.url().to_owned()),
        };
        let mut schedulers: Vec<SchedulerNode> = Vec::new();
        for number in 0..count {
            let name = if number == 0 { "scheduler".to_owned() } else { format!("scheduler-{}", number + 1) };
            let started = SchedulerOptions {
                binary: binaries.landfall.clone(),
                data_dir: directory.path().join(&name),
                config: config.clone(),
                database_url: url.clone(),
                logs: logs.clone(),
            };
            if let Some(first) = schedulers.first() {
                first.introduce(&started.data_dir)?;
            }
            let scheduler = SchedulerNode::start(&name, started).await?;
            world.forward(scheduler.address().port())?;
            schedulers.push(scheduler);
        }
        let pool = match &database {
            Some(database) => batch_record::connect(database.options()).await?,
            None => {
                let folder = postgres.as_ref().map_or(schedulers[0].data_dir(), SharedPostgres::directory);
                batch_record::connect(database::private_options(folder)).await?
            }
        };
        let postgres = postgres.map(|postgres| Arc::new(Mutex::new(postgres)));
        Ok(Self {
            world,
            pool,
            schedulers,
            postgres,
            database,
            agents: Vec::new(),
            environment: BTreeMap::new(),
            binaries,
            logs,
            directory,
        })
    }
}
