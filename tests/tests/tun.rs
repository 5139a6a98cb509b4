//! The whole of Landfall on real packets: real binaries in network namespaces, and links that are really cut.
//!
//! Skipped where there is no root, no `/dev/net/tun` or no iproute2. Lease times are short, so that the tests take seconds.

#![expect(clippy::unwrap_used, reason = "a test stops where it breaks")]

use std::time::{Duration, Instant};

use landfall_lab::check::{self, Evidence, Expect};
use landfall_lab::cluster::{Cluster, HURRIED, Options};
use landfall_lab::figures::Figures;
use landfall_lab::layout::{Layout, SMALL};
use landfall_lab::process::until;
use landfall_lab::truth;
use landfall_lab::tun::{self, Cut};
use landfall_lab::world::{Grade, World};
use tokio::sync::Mutex;

const MESH_PATIENCE: Duration = Duration::from_secs(90);
const SESSION_PATIENCE: Duration = Duration::from_secs(60);
/// Probes of one site are this far apart; an operator's are a second apart.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
const MAX_DEPTH: u32 = 8;
/// Pairs of mesh and of sites that have to be measured at least.
const FEWEST_PAIRS: usize = 21;

/// Held by the test whose cluster runs.
static TURN: Mutex<()> = Mutex::const_new(());

/// `None`, and a line that says why, where the grade cannot be had.
async fn cluster(agents: usize, sites: usize) -> Option<Cluster> {
    if let Some(reason) = tun::missing() {
        eprintln!("skipped: {reason}");
        return None;
    }
    let scenario = Layout::parse(SMALL, "small.toml").unwrap().scenario(Some(agents), Some(sites)).unwrap();
    let world = World::start_on(Grade::Tun, scenario).await.unwrap();
    let options = Options { scheduler: HURRIED.to_owned(), capacity: 8, logs: None, sharing: 0 };
    Some(Cluster::start(world, &options).await.unwrap())
}

/// What is to be said against a run's measurements.
fn offences(cluster: &Cluster, figures: &Figures) -> Vec<String> {
    let world = &cluster.world;
    let lateness = world.lateness();
    println!(
        "late by p50 {:?}, p99 {:?}; {:?}",
        lateness.quantile(0.5),
        lateness.quantile(0.99),
        world.network().unwrap().traffic()
    );
    figures.untrue(FEWEST_PAIRS, world.void().as_deref()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_agents_measure_and_crawl_twelve_sites_over_real_packets() {
    let _turn = TURN.lock().await;
    let run = async || match cluster(6, 12).await {
        Some(cluster) => measure_and_crawl(cluster).await,
        None => Vec::new(),
    };
    truth::in_one_run(run).await.unwrap();
}

/// Checks everything but how true the measurements are, and says what is to be said against those.
async fn measure_and_crawl(mut cluster: Cluster) -> Vec<String> {
    cluster.await_mesh(MESH_PATIENCE).await.unwrap();
    cluster.operate(&["landmarks", "elect", "--count", "4"]).await.unwrap();
    let list = cluster.write_site_list().unwrap();
    let depth = MAX_DEPTH.to_string();
    let submit = ["sites", "submit", list.to_str().unwrap(), "--batch", "autumn", "--max-depth", &depth];
    let paced = ["--request-interval", "100ms", "--watch"];
    cluster.operate(&[&submit[..], &paced[..]].concat()).await.unwrap();
    let facts = cluster.facts("autumn").await.unwrap();
    let (sites, agents, log) = (cluster.site_names(), cluster.agent_names(), cluster.world.log.entries());
    let evidence = Evidence {
        facts: &facts,
        sites: &sites,
        agents: &agents,
        webs: &cluster.world.webs,
        log: &log,
        max_depth: MAX_DEPTH,
        probe_interval: cluster.world.probe_gap(PROBE_INTERVAL),
    };
    let broken: Vec<String> = check::all(&evidence, Expect::Calm)
        .into_iter()
        .filter(|check| !check.holds())
        .map(|check| check.lines())
        .collect();
    assert_eq!(broken, Vec::<String>::new());
    assert!(log.iter().all(|access| access.agent.is_some()), "every request came from an agent's own address");
    let offences = offences(&cluster, &Figures::of(&facts, cluster.world.scenario(), &sites));
    cluster.stop().await.unwrap();
    offences
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_is_cut_off_loses_its_session_and_comes_back_after_healing() {
    let _turn = TURN.lock().await;
    let Some(mut cluster) = cluster(3, 3).await else { return };
    let pool = cluster.pool.clone();
    let name = cluster.agent_names()[1].clone();
    let active = async || -> anyhow::Result<i64> {
        let query = "select count(*) from sessions s join agents a on a.id = s.agent_id where s.state = 'active' and a.name = $1";
        Ok(sqlx::query_scalar(query).bind(&name).fetch_one(&pool).await?)
    };
    for cut in [Cut::Both, Cut::Towards, Cut::From] {
        let faults = cluster.world.network().unwrap().faults().clone();
        let began = Instant::now();
        faults.cut(1, cut);
        until("the session to be lost", SESSION_PATIENCE, async || Ok((active().await? == 0).then_some(())))
            .await
            .unwrap();
        let lost = began.elapsed();
        faults.heal(1);
        until("the agent to come back", SESSION_PATIENCE, async || Ok((active().await? == 1).then_some(())))
            .await
            .unwrap();
        println!("{cut:?}: lost after {lost:.1?}, back after {:.1?}", began.elapsed().saturating_sub(lost));
    }
    cluster.await_connected(3).await.unwrap();
    cluster.stop().await.unwrap();
}
