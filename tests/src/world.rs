//! One emulated world, running: sites, beacon proxies and names on a lane of loopback addresses of its own.
//!
//! Agents are not part of it: they are real processes, started by [`crate::cluster`].

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::beacons::BeaconProxies;
use crate::names::{Hosts, NameServer};
use crate::scenario::Scenario;
use crate::sites::{AccessLog, SiteServers};
use crate::timer::Timer;
use crate::wan::{LANES, Lane, Wan};
use crate::web::SiteWeb;

/// The port of the name server; whoever holds it on a lane holds the lane.
pub const NAMES_PORT: u16 = 5300;
/// Ports the sites may share, in order of preference.
const SITE_PORTS: [u16; 4] = [8080, 18080, 28080, 38080];
/// Lateness that never voids a run.
const MAX_LATENESS: Duration = Duration::from_millis(3);
/// How long server tasks may take to end.
const SHUTDOWN: Duration = Duration::from_secs(5);

/// A running world; ends when dropped.
#[derive(Debug)]
pub struct World {
    /// The WAN.
    pub wan: Wan,
    /// What each site holds.
    pub webs: Arc<Vec<SiteWeb>>,
    /// What reached the sites.
    pub log: AccessLog,
    site_port: u16,
    beacon_port: u16,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl World {
    /// Starts everything of a scenario but its agents.
    ///
    /// # Errors
    /// When no lane is free, or an address on it is taken.
    pub async fn start(scenario: Scenario) -> anyhow::Result<Self> {
        raise_file_limit()?;
        let rules = scenario.web.clone();
        let webs: Vec<SiteWeb> =
            (0..scenario.sites.len()).map(|site| SiteWeb::draw(&rules, scenario.seed, site)).collect();
        let webs = Arc::new(webs);
        let (lane, names) = take_lane().await?;
        let wan = Wan::new(scenario, lane, Timer::start().context("start the timer's thread")?);
        let servers = bind_sites(&wan).await?;
        let beacons = BeaconProxies::bind(&wan).await?;
        let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
        let sites = wan.scenario().sites.iter();
        let hosts: Hosts = sites.map(|site| (site.host.clone(), lane.site(site.machine))).collect();
        names.serve(hosts, &tasks, &shutdown);
        let beacon_port = beacons.port();
        beacons.serve(&wan, &tasks, &shutdown);
        let site_port = servers.port();
        let log = servers.serve(&wan, &webs, &tasks, &shutdown);
        Ok(Self { wan, webs, log, site_port, beacon_port, tasks, shutdown })
    }

    /// What is emulated.
    pub fn scenario(&self) -> &Scenario {
        self.wan.scenario()
    }

    /// Where names are resolved.
    pub fn names(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.wan.lane().names()), NAMES_PORT)
    }

    /// The port of the agents' beacons, and of the proxies before them.
    pub fn beacon_port(&self) -> u16 {
        self.beacon_port
    }

    /// A site as it is submitted.
    pub fn site_name(&self, site: usize) -> String {
        format!("http://{}:{}", self.scenario().sites[site].host, self.site_port)
    }

    /// The site list, one a line.
    pub fn site_list(&self) -> String {
        (0..self.scenario().sites.len()).map(|site| self.site_name(site) + "\n").collect()
    }

    /// How late the world itself was, where that voids a run: p99 beyond the larger of 3 ms and 5 % of the median round
    /// trip. `None` when its timing can be trusted.
    pub fn too_late(&self) -> Option<String> {
        let late = self.wan.timer().lateness().quantile(0.99);
        let allowed = MAX_LATENESS.max(self.scenario().median_rtt().mul_f64(0.05));
        (late > allowed).then(|| format!("the lab itself was late: p99 {late:.1?}, allowed {allowed:.1?}"))
    }

    /// Ends all servers.
    pub async fn stop(&self) {
        self.shutdown.cancel();
        self.tasks.close();
        if tokio::time::timeout(SHUTDOWN, self.tasks.wait()).await.is_err() {
            tracing::warn!("some of the lab's servers did not end in time");
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// A thousand listeners and their connections exhaust the usual limit.
fn raise_file_limit() -> anyhow::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("read the limit of open files")?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("raise the limit of open files")
}

async fn take_lane() -> anyhow::Result<(Lane, NameServer)> {
    let mut last = None;
    for lane in (0..LANES).filter_map(Lane::new) {
        match NameServer::bind(SocketAddr::new(lane.names().into(), NAMES_PORT)).await {
            Ok(server) => return Ok((lane, server)),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error).with_context(|| format!("port {NAMES_PORT} is taken on every lane of 127.x.0.1")),
        None => bail!("there is no lane"),
    }
}

async fn bind_sites(wan: &Wan) -> anyhow::Result<SiteServers> {
    let mut last = None;
    for port in SITE_PORTS {
        match SiteServers::bind(wan, port).await {
            Ok(servers) => return Ok(servers),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error).with_context(|| format!("the sites need one of the ports {SITE_PORTS:?}")),
        None => bail!("there is no port for the sites"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Layout, SMALL};
    use std::net::SocketAddrV4;
    use std::time::Instant;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Asks on a connection; returns the head's delay and the whole answer.
    async fn ask(stream: &mut tokio::net::TcpStream, request: &str, until: &str) -> (Duration, String) {
        let start = Instant::now();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        let mut first = None;
        while !text.contains(until) {
            let mut chunk = [0_u8; 4096];
            let length = stream.read(&mut chunk).await.unwrap();
            assert!(length > 0, "closed after: {text}");
            first.get_or_insert_with(|| start.elapsed());
            text.push_str(&String::from_utf8_lossy(&chunk[..length]));
        }
        (first.unwrap(), text)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_site_answers_after_its_round_trips_and_logs_who_asked() {
        let scenario = Layout::parse(SMALL, "small.toml").unwrap().scenario(None, None).unwrap();
        let world = World::start(scenario).await.unwrap();
        let lane = world.wan.lane();
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddrV4::new(lane.agent(3), 0).into()).unwrap();
        let site = SocketAddrV4::new(lane.site(7), world.site_port);
        let mut stream = socket.connect(site.into()).await.unwrap();
        let rtt = world.scenario().paths[3][7].rtt();
        let (cold, _) = ask(&mut stream, "HEAD / HTTP/1.1\r\nhost: x\r\n\r\n", "\r\n\r\n").await;
        let (warm, page) = ask(&mut stream, "GET / HTTP/1.1\r\nhost: x\r\n\r\n", "</html>").await;
        assert!(cold >= rtt * 2 && warm >= rtt && warm < cold, "{cold:?} and {warm:?} for {rtt:?}");
        assert!(page.contains("content-length"), "{page}");
        let log = world.log.entries();
        let seen: Vec<_> = log.iter().map(|entry| (entry.site, entry.agent, entry.get, entry.path.as_str())).collect();
        assert_eq!(seen, [(7, Some(3), false, "/"), (7, Some(3), true, "/")]);
        let other =
            World::start(Layout::parse(SMALL, "small.toml").unwrap().scenario(None, None).unwrap()).await.unwrap();
        assert_ne!(other.wan.lane(), lane, "two worlds never share addresses");
        world.stop().await;
    }
}
