//! The whole of Landfall in small: real binaries, real sockets, an emulated network, and the database asked afterwards.
//!
//! Intervals and lease times are shorter than an operator would set them, so that the tests take seconds; the rules they
//! bound stay the same. One cluster at a time: two would make each other late.

#![expect(clippy::unwrap_used, reason = "a test stops where it breaks")]

use std::path::Path;
use std::time::Duration;

use landfall_lab::check::{self, Evidence, Expect};
use landfall_lab::cluster::{Cluster, Options};
use landfall_lab::figures::Figures;
use landfall_lab::layout::{Layout, SMALL};
use landfall_lab::process::until;
use landfall_lab::witness::Facts;
use landfall_lab::world::World;
use tokio::sync::Mutex;

/// Probes of one site are this far apart; an operator's are a second apart.
const PROBE_INTERVAL: Duration = Duration::from_millis(200);
const MAX_DEPTH: u32 = 8;
const MESH_PATIENCE: Duration = Duration::from_secs(60);
const LEASE_PATIENCE: Duration = Duration::from_secs(60);
const BATCH_PATIENCE: Duration = Duration::from_secs(90);
/// The lease times are short so that a dead agent is found in seconds.
const SCHEDULER: &str = "
[measure]
site_interval = '200ms'
[lease]
heartbeat_interval = '500ms'
life = '3s'
grace = '500ms'
";

/// Held by the test whose cluster runs.
static TURN: Mutex<()> = Mutex::const_new(());

async fn cluster(agents: usize, sites: usize) -> Cluster {
    let layout = Layout::parse(SMALL, "small.toml").unwrap();
    let world = World::start(layout.scenario(Some(agents), Some(sites)).unwrap()).await.unwrap();
    let options = Options { scheduler: SCHEDULER.to_owned(), capacity: 8, logs: None };
    Cluster::start(world, &options).await.unwrap()
}

async fn submit(cluster: &Cluster, list: &Path, more: &[&str]) -> String {
    let list = list.to_str().unwrap();
    let depth = MAX_DEPTH.to_string();
    let mut words = vec!["sites", "submit", list, "--batch", "autumn", "--max-depth", &depth];
    words.extend(more);
    cluster.operate(&words).await.unwrap()
}

/// What the database and the sites' logs say is wrong.
fn offences(cluster: &Cluster, facts: &Facts, expect: Expect) -> Vec<String> {
    let (sites, agents, log) = (cluster.site_names(), cluster.agent_names(), cluster.world.log.entries());
    let evidence = Evidence {
        facts,
        sites: &sites,
        agents: &agents,
        webs: &cluster.world.webs,
        log: &log,
        max_depth: MAX_DEPTH,
        probe_interval: PROBE_INTERVAL,
    };
    let broken = check::all(&evidence, expect).into_iter().filter(|check| !check.holds());
    broken.map(|check| check.lines()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn six_agents_crawl_24_sites_each_exactly_once() {
    let _turn = TURN.lock().await;
    let mut cluster = cluster(6, 24).await;
    cluster.await_mesh(MESH_PATIENCE).await.unwrap();
    let elected = cluster.operate(&["landmarks", "elect", "--count", "4", "--format", "json"]).await.unwrap();
    let list = cluster.write_site_list().unwrap();
    let said = submit(&cluster, &list, &["--request-interval", "100ms", "--watch"]).await;
    assert!(said.contains("24"), "{said}");
    let facts = cluster.facts("autumn").await.unwrap();
    assert_eq!(offences(&cluster, &facts, Expect::Calm), Vec::<String>::new());
    assert_eq!(facts.landmarks.len(), 4, "{elected}");
    assert!(facts.tasks.iter().all(|task| task.strategy.as_deref() == Some("gnp-top3")), "{:?}", facts.tasks);
    assert!(facts.tasks.iter().all(|task| task.fallback_reason.is_none()), "{:?}", facts.tasks);
    let probers: std::collections::BTreeSet<&str> =
        facts.site_measurements.iter().map(|one| one.prober.as_str()).collect();
    assert_eq!(probers, facts.landmarks.iter().map(String::as_str).collect(), "only landmarks measure sites");

    let again = submit(&cluster, &list, &["--request-interval", "100ms"]).await;
    assert!(again.contains("nothing changed"), "{again}");
    let report = cluster.operate(&["report", "assignments", "--batch", "autumn", "--format", "csv"]).await.unwrap();
    assert_eq!(report.lines().count(), 25, "a head and a row a site: {report}");
    measurements_are_true(&cluster, &facts);
    cluster.stop().await.unwrap();
}

/// Mesh and site measurements equal the scenario's round trips, where the machine was quiet enough to tell.
fn measurements_are_true(cluster: &Cluster, facts: &Facts) {
    let figures = Figures::of(facts, cluster.world.scenario(), &cluster.site_names());
    for (what, accuracy) in [("mesh", figures.mesh), ("sites", figures.sites)] {
        assert!(accuracy.pairs > 20, "{what}: {accuracy:?}");
        match (accuracy.share().is_some_and(|share| share >= 0.95), cluster.world.too_late()) {
            (true, _) => {}
            (false, Some(late)) => println!("void: {late}, and {what}: {accuracy:?}"),
            (false, None) => panic!("{what}: {accuracy:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_agent_alone_is_a_fleet() {
    let _turn = TURN.lock().await;
    let cluster = cluster(1, 5).await;
    let list = cluster.write_site_list().unwrap();
    submit(&cluster, &list, &["--request-interval", "100ms", "--watch"]).await;
    let facts = cluster.facts("autumn").await.unwrap();
    assert_eq!(offences(&cluster, &facts, Expect::Calm), Vec::<String>::new());
    assert_eq!(facts.landmarks, Vec::<String>::new());
    cluster.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sites_of_a_killed_agent_are_finished_by_others_exactly_once() {
    let _turn = TURN.lock().await;
    let mut cluster = cluster(3, 9).await;
    let list = cluster.write_site_list().unwrap();
    // Slow enough that the agent dies in the middle of its crawls.
    submit(&cluster, &list, &["--request-interval", "500ms", "--strategy", "random"]).await;
    let pool = cluster.pool.clone();
    let victim: String = until("a lease", LEASE_PATIENCE, async || {
        let query = "select a.name from leases l join agents a on a.id = l.agent_id where l.state = 'active' limit 1";
        Ok(sqlx::query_scalar(query).fetch_optional(&pool).await?)
    })
    .await
    .unwrap();
    let index = cluster.agent_names().iter().position(|name| *name == victim).unwrap();
    cluster.kill_agent(index).await.unwrap();

    let ended = "select count(*) from tasks where state in ('done', 'failed')";
    cluster.await_count("every task to end", ended, 9, BATCH_PATIENCE).await.unwrap();
    let facts = cluster.facts("autumn").await.unwrap();
    assert_eq!(offences(&cluster, &facts, Expect::Losses), Vec::<String>::new());
    let moved: Vec<_> = facts.tasks.iter().filter(|task| task.leases > 1).collect();
    assert!(!moved.is_empty(), "the killed agent held a lease: {:?}", facts.tasks);
    assert!(moved.iter().all(|task| task.crawler.as_ref() != Some(&victim)), "{moved:?}");
    cluster.stop().await.unwrap();
}
