//! The common parts of the tests: locks for parallel tests, clusters, and queries.

use std::path::Path;
use std::time::Duration;

use landfall_lab::cluster::process::until;
use landfall_lab::cluster::{Cluster, ClusterDatabase, ClusterOptions, HURRIED};
use landfall_lab::evidence::batch_record::BatchRecord;
use landfall_lab::evidence::check::{self, Evidence, RunKind};
use landfall_lab::evidence::figures::Figures;
use landfall_lab::world::scenario::{Layout, SMALL, Scenario};
use landfall_lab::world::{Grade, World};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Time limit of every wait.
pub const PATIENCE: Duration = Duration::from_secs(240);
pub const ENDED: &str = "select count(*) from tasks where state in ('done', 'failed')";
pub const MAX_DEPTH: u32 = 8;
/// Minimum time between probes of a site. The default is one second.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(200);

static MACHINE: RwLock<()> = RwLock::const_new(());

/// Locks the machine for a test that checks measured times, because parallel tests would distort
/// the times.
pub async fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}

/// Locks the machine for a test that may run in parallel with tests that also call `beside`.
pub async fn beside() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}

/// Like [`beside`], but for a test without a tokio runtime.
pub fn blocking_beside() -> RwLockReadGuard<'static, ()> {
    MACHINE.blocking_read()
}

/// A setting for tests that do not check measurements: agents take few samples, even if the samples
/// differ.
pub const FEW_SAMPLES: &str = "site_samples = 4\n";

/// Starts a cluster in the small layout, with [`FEW_SAMPLES`]. Each agent has `capacity` slots.
pub async fn small(agents: usize, sites: usize, capacity: u32) -> Cluster {
    cluster(small_scenario(SMALL, agents, sites), capacity, FEW_SAMPLES).await
}

/// A scenario of the small layout or of a variant of it.
pub fn small_scenario(layout: &str, agents: usize, sites: usize) -> Scenario {
    Layout::parse(layout, "small.toml").unwrap().scenario(Some(agents), Some(sites)).unwrap()
}

/// Starts a cluster. `more` is appended to the configuration of the scheduler, whose last table is
/// `[measure]`.
pub async fn cluster(scenario: Scenario, capacity: u32, more: &str) -> Cluster {
    cluster_on(Grade::Rootless, scenario, capacity, more).await
}

pub async fn cluster_on(grade: Grade, scenario: Scenario, capacity: u32, more: &str) -> Cluster {
    let world = World::start_on(grade, scenario).await.unwrap();
    let (scheduler, database) = (format!("{HURRIED}{more}"), database());
    Cluster::start(world, &ClusterOptions { scheduler, capacity, logs: None, database }).await.unwrap()
}

/// A new database on the Postgres server at `DATABASE_URL`, because starting a server for each
/// cluster would take most of a second of processor time. If `DATABASE_URL` is not set, each
/// cluster has a private Postgres.
pub fn database() -> ClusterDatabase {
    std::env::var("DATABASE_URL").map_or(ClusterDatabase::Private, ClusterDatabase::OnServer)
}

pub async fn count(cluster: &Cluster, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(&cluster.pool).await.unwrap()
}

/// Submits all sites as the batch `autumn`, and returns the output.
pub async fn submit(cluster: &Cluster, more: &[&str]) -> String {
    submit_file(cluster, &cluster.write_site_list().unwrap(), more).await
}

/// Submits a list of sites as the batch `autumn`, and returns the output.
pub async fn submit_file(cluster: &Cluster, list: &Path, more: &[&str]) -> String {
    let depth = MAX_DEPTH.to_string();
    let words = ["sites", "submit", list.to_str().unwrap(), "--batch", "autumn", "--max-depth", &depth];
    cluster.operate(&[&words[..], more].concat()).await.unwrap()
}

/// Submits sites with the strategy `random`.
pub async fn submit_list(cluster: &Cluster, sites: &str, batch: &str, more: &[&str]) {
    let list = cluster.folder().join(format!("{batch}.txt"));
    std::fs::write(&list, sites).unwrap();
    let words = ["sites", "submit", list.to_str().unwrap(), "--batch", batch, "--strategy", "random"];
    cluster.operate(&[&words[..], more].concat()).await.unwrap();
}

/// Waits until an agent is crawling, and returns its name.
pub async fn await_crawler(cluster: &Cluster) -> String {
    let query = "select a.name from leases l join agents a on a.id = l.agent_id where l.state = 'active' limit 1";
    let crawls = async || Ok(sqlx::query_scalar(query).fetch_optional(&cluster.pool).await?);
    until("an agent to crawl", PATIENCE, crawls).await.unwrap()
}

/// Checks the database and the sites' logs, and returns the failed checks.
pub fn violations(cluster: &Cluster, record: &BatchRecord, expect: RunKind) -> Vec<String> {
    let (sites, agents, log) = (cluster.site_names(), cluster.agent_names(), cluster.world.log.entries());
    let evidence = Evidence {
        record,
        sites: &sites,
        agents: &agents,
        webs: &cluster.world.webs,
        log: &log,
        max_depth: MAX_DEPTH,
        probe_interval: cluster.world.probe_gap(PROBE_INTERVAL),
    };
    let broken = check::all(&evidence, expect).into_iter().filter(|check| !check.holds());
    broken.map(|check| check.lines()).collect()
}

/// What is wrong with the measurements of the mesh and of sites; empty if the machine was too busy.
pub fn untrue(cluster: &Cluster, record: &BatchRecord, fewest: usize) -> Vec<String> {
    let figures = Figures::of(record, cluster.world.scenario(), &cluster.site_names());
    figures.untrue(fewest, cluster.world.void().as_deref()).unwrap()
}
