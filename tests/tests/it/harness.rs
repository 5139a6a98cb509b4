//! What the tests share: who may run beside whom, a cluster, and how it is asked.

use std::path::Path;
use std::time::Duration;

use landfall_lab::cluster::process::until;
use landfall_lab::cluster::{Cluster, HURRIED, Options};
use landfall_lab::evidence::check::{self, Evidence, Expect};
use landfall_lab::evidence::figures::Figures;
use landfall_lab::evidence::witness::Facts;
use landfall_lab::world::layout::{Layout, SMALL};
use landfall_lab::world::scenario::Scenario;
use landfall_lab::world::{Grade, World};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How long anything may take that is waited for.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const ENDED: &str = "select count(*) from tasks where state in ('done', 'failed')";
pub const MAX_DEPTH: u32 = 8;
/// Probes of one site are this far apart; an operator's are a second apart.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(200);

static MACHINE: RwLock<()> = RwLock::const_new(());

/// Held by a test that judges times: two would make each other late.
pub async fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().await
}

/// Held by a test that may run beside others.
pub async fn beside() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().await
}

/// The same of a test that waits for nothing itself.
pub fn blocking_beside() -> RwLockReadGuard<'static, ()> {
    MACHINE.blocking_read()
}

/// Agents of so many slots in the small layout.
pub async fn small(agents: usize, sites: usize, capacity: u32) -> Cluster {
    cluster(small_scenario(SMALL, agents, sites), capacity, "").await
}

/// The small layout, or a change of it.
pub fn small_scenario(layout: &str, agents: usize, sites: usize) -> Scenario {
    Layout::parse(layout, "small.toml").unwrap().scenario(Some(agents), Some(sites)).unwrap()
}

/// A cluster whose scheduler is told more.
pub async fn cluster(scenario: Scenario, capacity: u32, more: &str) -> Cluster {
    cluster_on(Grade::Rootless, scenario, capacity, more).await
}

pub async fn cluster_on(grade: Grade, scenario: Scenario, capacity: u32, more: &str) -> Cluster {
    let world = World::start_on(grade, scenario).await.unwrap();
    let options = Options { scheduler: format!("{HURRIED}{more}"), capacity, logs: None, sharing: 0 };
    Cluster::start(world, &options).await.unwrap()
}

pub async fn count(cluster: &Cluster, query: &'static str) -> i64 {
    sqlx::query_scalar(query).fetch_one(&cluster.pool).await.unwrap()
}

/// Submits all sites of the world as the batch `autumn`; returns what was said.
pub async fn submit(cluster: &Cluster, more: &[&str]) -> String {
    submit_file(cluster, &cluster.write_site_list().unwrap(), more).await
}

/// The same with a list of one's own.
pub async fn submit_file(cluster: &Cluster, list: &Path, more: &[&str]) -> String {
    let depth = MAX_DEPTH.to_string();
    let words = ["sites", "submit", list.to_str().unwrap(), "--batch", "autumn", "--max-depth", &depth];
    cluster.operate(&[&words[..], more].concat()).await.unwrap()
}

/// Submits these sites for agents drawn at random.
pub async fn submit_list(cluster: &Cluster, sites: &str, batch: &str, more: &[&str]) {
    let list = cluster.folder().join(format!("{batch}.txt"));
    std::fs::write(&list, sites).unwrap();
    let words = ["sites", "submit", list.to_str().unwrap(), "--batch", batch, "--strategy", "random"];
    cluster.operate(&[&words[..], more].concat()).await.unwrap();
}

/// The name of an agent that crawls.
pub async fn await_crawler(cluster: &Cluster) -> String {
    let query = "select a.name from leases l join agents a on a.id = l.agent_id where l.state = 'active' limit 1";
    let crawls = async || Ok(sqlx::query_scalar(query).fetch_optional(&cluster.pool).await?);
    until("an agent to crawl", PATIENCE, crawls).await.unwrap()
}

/// What the database and the sites' logs say is wrong.
pub fn offences(cluster: &Cluster, facts: &Facts, expect: Expect) -> Vec<String> {
    let (sites, agents, log) = (cluster.site_names(), cluster.agent_names(), cluster.world.log.entries());
    let evidence = Evidence {
        facts,
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

/// What is to be said against the measurements of mesh and sites, where the machine was quiet enough to tell.
pub fn untrue(cluster: &Cluster, facts: &Facts, fewest: usize) -> Vec<String> {
    let figures = Figures::of(facts, cluster.world.scenario(), &cluster.site_names());
    figures.untrue(fewest, cluster.world.void().as_deref()).unwrap()
}
