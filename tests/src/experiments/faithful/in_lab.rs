//! The experiment in the lab: the crawler of the real agent crawls emulated sites. The results are
//! compared with a simulation of the same crawls. The real crawler keeps a connection unless the
//! site closes it, so for a connection per request the site closes it after each response.
//!
//! No scheduler runs: the code of the simulation draws the agent that crawls each site.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Context;
use tokio::process::Command;

use super::network::Network;
use super::settings::{Connection, LayoutForm, Point, Settings};
use crate::cluster::Binaries;
use crate::world::World;
use crate::world::scenario::Scenario;
use crate::world::web::{SiteRequest, SiteWeb};

/// Maximum number of pages of a crawl; no crawl reaches it.
const MAX_PAGES: u32 = 100_000;

pub(super) mod single;
pub(super) mod window;

/// The first layout and the first seed of the settings.
fn first(settings: &Settings) -> anyhow::Result<(&LayoutForm, u64)> {
    let form = settings.layouts.first().context("the settings have no layout")?;
    Ok((form, *settings.seeds.first().context("the settings have no seed")?))
}

/// The emulated network of a point. The server delays its response for all pages of a site except
/// the first page.
fn scenario_at(network: &Network, point: Point) -> Scenario {
    let mut scenario = network.at(point);
    (scenario.web.slow_share, scenario.web.slow_ms) = (1.0, point.server_ms);
    scenario.web.closes_connections = point.connection == Connection::PerRequest;
    scenario
}

/// The requests of a crawl of each site in the lab.
fn requests(scenario: &Scenario) -> Vec<Vec<SiteRequest>> {
    let site = |site| SiteWeb::draw(&scenario.web, scenario.seed, site).requests(u32::MAX);
    (0..scenario.sites.len()).map(site).collect()
}

/// Starts crawls that come from the emulated addresses of agents.
struct Crawlers {
    binary: PathBuf,
    folder: tempfile::TempDir,
}

impl Crawlers {
    /// Writes the configuration of every agent.
    fn new(world: &World) -> anyhow::Result<Self> {
        let crawlers = Self { binary: Binaries::find()?.agent, folder: tempfile::tempdir().context("make a folder")? };
        (0..world.scenario().agents.len()).try_for_each(|agent| crawlers.configure(world, agent))?;
        Ok(crawlers)
    }

    fn folder(&self, agent: usize) -> PathBuf {
        self.folder.path().join(agent.to_string())
    }

    fn configure(&self, world: &World, agent: usize) -> anyhow::Result<()> {
        let (lane, node) = (world.wan.lane(), &world.scenario().agents[agent]);
        std::fs::create_dir(self.folder(agent)).context("make an agent's folder")?;
        let mut config = toml::toml! {
            scheduler = "http://127.0.0.1:9"
            contact_url = "https://lab.test/crawler"
            beacon.enabled = false
        };
        for (key, value) in [
            ("name", node.name.clone()),
            ("city", node.city.clone()),
            ("carrier", node.carrier.clone()),
            ("bind", lane.agent(agent).to_string()),
            ("dns", world.names().to_string()),
        ] {
            config.insert(key.to_owned(), value.into());
        }
        config.insert("allow_net".to_owned(), vec![lane.network()].into());
        let text = toml::to_string(&config).context("write an agent's configuration")?;
        std::fs::write(self.folder(agent).join("agent.toml"), text).context("write an agent's configuration")
    }

    /// The command that crawls all pages of a site, without pauses between requests. Its priority is
    /// low, so that the emulated network is on time although two hundred crawlers run beside it.
    fn command(&self, agent: usize, site: &str) -> Command {
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(&self.binary);
        command.args(["--log", "warn", "crawl", site, "--max-bytes", "10000000000"]);
        command.args(["--max-pages", &MAX_PAGES.to_string()]);
        command.args(["--max-depth", "10000", "--max-duration", "60m", "--request-interval", "0s", "--dir"]);
        command.arg(self.folder(agent)).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        command
    }
}
