//! The emulated network as the real prober sees it: samples equal the scenario's round trips.

#![expect(clippy::unwrap_used, reason = "a test stops where it breaks")]

use std::path::Path;

use futures::StreamExt;
use landfall_lab::cluster::{Binaries, CONTACT_URL};
use landfall_lab::layout::{Layout, SMALL};
use landfall_lab::world::World;
use tokio::process::Command;

/// Every agent measures this many of the sites.
const SITES: usize = 8;
/// Probers that run at once: more would make each other late.
const AT_ONCE: usize = 4;
/// Gives a prober the source address of an agent.
fn write_config(world: &World, agent: usize, folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let (bind, dns) = (world.wan.lane().agent(agent), world.names());
    let text = format!(
        "scheduler = 'http://127.0.0.1:1'\nname = 'a'\ncity = 'c'\ncarrier = 'i'\ncontact_url = '{CONTACT_URL}'\n\
         bind = '{bind}'\ndns = '{dns}'\nallow_net = ['127.0.0.0/8']\n"
    );
    std::fs::write(folder.join("agent.toml"), text).unwrap();
}

async fn probe(binary: &Path, folder: &Path, url: &str) -> f64 {
    let mut command = Command::new(binary);
    command.args(["probe", url, "--count", "5", "--interval", "5ms", "--format", "json", "--dir"]).arg(folder);
    let output = command.kill_on_drop(true).output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    printed["weighted_mean_ms"].as_f64().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn samples_of_sites_equal_the_scenarios_round_trips() {
    let binaries = Binaries::find().unwrap();
    let scenario = Layout::parse(SMALL, "small.toml").unwrap().scenario(None, Some(SITES)).unwrap();
    let world = World::start(scenario).await.unwrap();
    let folders = tempfile::tempdir().unwrap();
    let agents = world.scenario().agents.len();
    let folder = |agent: usize| folders.path().join(agent.to_string());
    (0..agents).for_each(|agent| write_config(&world, agent, &folder(agent)));
    let pairs = (0..agents).flat_map(|agent| (0..SITES).map(move |site| (agent, site)));
    let (world, agent_binary) = (&world, &binaries.agent);
    let probes = pairs.map(|(agent, site)| {
        let folder = folder(agent);
        async move {
            let measured_ms = probe(agent_binary, &folder, &world.site_name(site)).await;
            (world.scenario().paths[agent][site].rtt_ms, measured_ms)
        }
    });
    let measured: Vec<(f64, f64)> = futures::stream::iter(probes).buffer_unordered(AT_ONCE).collect().await;
    let right = measured.iter().filter(|(truth, seen)| (truth - seen).abs() <= (truth * 0.05).max(2.0)).count();
    let errors: f64 = measured.iter().map(|(truth, seen)| seen - truth).sum();
    println!("{right} of {} are right, {errors:.1} ms too long in all", measured.len());
    match world.too_late() {
        Some(late) if right * 100 < measured.len() * 95 => println!("void: {late}"),
        _ => assert!(right * 100 >= measured.len() * 95, "{right} of {} are right: {measured:?}", measured.len()),
    }
    world.stop().await;
}
