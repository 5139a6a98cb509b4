//! Measures the emulated network with the real prober. The samples must equal the round trips of
//! the scenario.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use futures_util::StreamExt;
use landfall_lab::cluster::{Binaries, CONTACT_URL};
use landfall_lab::evidence::figures::{self, Accuracy};
use landfall_lab::world::scenario::{Layout, SMALL};
use landfall_lab::world::{Grade, World, tun};

use crate::harness::beside;

const SITES: usize = 5;
/// Number of concurrent probers. More probers would delay each other.
const AT_ONCE: usize = 4;

/// Writes the configuration of a prober whose source address is the address of an agent.
fn write_config(world: &World, agent: usize, folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let (bind, dns, net) = (world.wan.lane().agent(agent), world.names(), world.wan.lane().network());
    let text = format!(
        "scheduler = 'http://127.0.0.1:1'\nname = 'a'\ncity = 'c'\ncarrier = 'i'\ncontact_url = '{CONTACT_URL}'\n\
         bind = '{bind}'\ndns = '{dns}'\nallow_net = ['{net}']\n"
    );
    std::fs::write(folder.join("agent.toml"), text).unwrap();
}

/// Two round trips to a site in milliseconds: the round trip in the scenario, and the round trip
/// that a prober measures.
async fn probe(binary: &Path, world: &World, agent: usize, site: usize, folder: &Path, metric: &str) -> (f64, f64) {
    let place = world.namespace(agent);
    let mut command = place.command(binary);
    command.args(["probe", &world.site_name(site), "--metric", metric, "--count", "5", "--interval", "5ms"]);
    command.args(["--format", "json", "--dir"]).arg(folder).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = place.run(move || command.spawn()).unwrap().unwrap().wait_with_output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    (world.scenario().paths[agent][site].rtt_ms, printed["weighted_mean_ms"].as_f64().unwrap())
}

/// Measures every site from every agent by each metric, and asserts that the samples equal the
/// round trips.
async fn samples_equal_round_trips(grade: Grade, metrics: &[&str]) {
    let _turn = beside().await;
    let binaries = Binaries::find().unwrap();
    let scenario = Layout::parse(SMALL, "small.toml").unwrap().scenario(None, Some(SITES)).unwrap();
    let world = World::start_on(grade, scenario).await.unwrap();
    let folders = tempfile::tempdir().unwrap();
    let agents = world.scenario().agents.len();
    let folder = |agent: usize| folders.path().join(agent.to_string());
    (0..agents).for_each(|agent| write_config(&world, agent, &folder(agent)));
    for metric in metrics {
        figures::in_one_run(async || measure(&world, &binaries.agent, metric, &folder).await).await.unwrap();
    }
    let lateness = world.lateness();
    println!(
        "{grade:?}: late by p50 {:?}, p99 {:?} of {}",
        lateness.quantile(0.5),
        lateness.quantile(0.99),
        lateness.count()
    );
    world.stop().await;
}

/// Measures every site from every agent, and returns what is wrong with the measurements.
async fn measure(world: &World, agent_binary: &Path, metric: &str, folder: &dyn Fn(usize) -> PathBuf) -> Vec<String> {
    let pairs = (0..world.scenario().agents.len()).flat_map(|agent| (0..SITES).map(move |site| (agent, site)));
    let probes = pairs.map(|(agent, site)| {
        let folder = folder(agent);
        async move { probe(agent_binary, world, agent, site, &folder, metric).await }
    });
    let measured: Vec<(f64, f64)> = futures_util::stream::iter(probes).buffer_unordered(AT_ONCE).collect().await;
    let accuracy = Accuracy::of(measured.iter().map(|(true_ms, seen_ms)| Some((*seen_ms, *true_ms))));
    let mut errors: Vec<f64> = measured.iter().map(|(true_ms, seen_ms)| seen_ms - true_ms).collect();
    errors.sort_by(f64::total_cmp);
    let [p50, p95] = [50, 95].map(|percent| errors[(errors.len() * percent).div_ceil(100) - 1]);
    println!("{metric}: too long by p50 {p50:.2}, p95 {p95:.2} ms");
    accuracy
        .violation(metric, world.void().as_deref())
        .into_iter()
        .map(|violation| format!("{violation}: {measured:?}"))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn samples_of_sites_equal_the_scenarios_round_trips() {
    samples_equal_round_trips(Grade::Rootless, &["ttfb"]).await;
}

/// In the tun grade, a connection and an ICMP echo also take a round trip.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_every_metric_samples_equal_the_round_trips_of_real_packets() {
    match tun::missing() {
        Some(reason) => eprintln!("skipped: {reason}"),
        None => samples_equal_round_trips(Grade::Tun, &["ttfb", "connect", "icmp"]).await,
    }
}
