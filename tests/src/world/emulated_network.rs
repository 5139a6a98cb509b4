//! Starts and stops an emulated network of either grade, and tells its names, ports and addresses.
//! This module also decides whether the timing of a run is void, because the network was late or
//! dropped packets for lack of room, or because the machine was too busy.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::addresses::{Lane, ReservedLane};
use super::beacons_and_names::{BeaconProxies, Hosts, NAMES_PORT, NameServer};
use super::response_delays::Wan;
use super::scenario::Scenario;
use super::site_pages::SiteWeb;
use super::site_servers::{AccessLog, SiteServers};
use super::timer::{Lateness, Timer};
use super::tun::{self, NetNamespace, Network};
use crate::machine::{CpuTime, raise_file_limit};

const SHUTDOWN: Duration = Duration::from_secs(5);

/// A running emulated network. Dropping the world stops the network.
#[derive(Debug)]
pub struct World {
    pub wan: Wan,
    pub webs: Arc<Vec<SiteWeb>>,
    pub log: AccessLog,
    site_port: u16,
    beacon_port: u16,
    /// `None` in the tun grade.
    reserved: Option<ReservedLane>,
    network: Option<Network>,
    began: Option<CpuTime>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl World {
    /// Starts the network of a scenario in the rootless grade.
    pub async fn start(scenario: Scenario) -> anyhow::Result<Self> {
        Self::start_on(Grade::Rootless, scenario).await
    }

    /// Starts the network of a scenario. Fails if this machine does not support the grade, no lane
    /// (range of addresses) is free, or an address is in use.
    pub async fn start_on(grade: Grade, scenario: Scenario) -> anyhow::Result<Self> {
        raise_file_limit()?;
        match grade {
            Grade::Rootless => Self::start_in(ReservedLane::take()?, scenario).await,
            Grade::Tun => {
                let network = start_network(scenario.clone()).await?;
                Self::serve(Lane::TUN, None, Some(network), scenario).await
            }
        }
    }

    /// Starts another network at the addresses of this one, which must have been stopped.
    pub async fn start_again(&self, scenario: Scenario) -> anyhow::Result<Self> {
        Self::start_in(self.reserved.clone().context("only the rootless grade can start again")?, scenario).await
    }

    async fn start_in(reserved: ReservedLane, scenario: Scenario) -> anyhow::Result<Self> {
        Self::serve(reserved.lane, Some(reserved), None, scenario).await
    }

    async fn serve(
        lane: Lane,
        reserved: Option<ReservedLane>,
        network: Option<Network>,
        scenario: Scenario,
    ) -> anyhow::Result<Self> {
        let rules = scenario.web.clone();
        let webs: Vec<SiteWeb> =
            (0..scenario.sites.len()).map(|site| SiteWeb::draw(&rules, scenario.seed, site)).collect();
        let webs = Arc::new(webs);
        let wan = Wan::new(scenario, lane, Timer::start().context("start the timer's thread")?);
        let (names, servers) = {
            let (core, wan) = (network.as_ref().map_or(&NetNamespace::HOST, Network::core), wan.clone());
            let address = SocketAddr::new(lane.names().into(), NAMES_PORT);
            core.run(move || {
                anyhow::Ok((NameServer::bind(address).context("serve names")?, SiteServers::bind(&wan)?))
            })??
        };
        let (tasks, shutdown) = (TaskTracker::new(), CancellationToken::new());
        let beacon_port = if network.is_some() {
            tun::BEACON_PORT
        } else {
            let beacons = BeaconProxies::bind(&wan).await?;
            let port = beacons.port();
            beacons.serve(&wan, &tasks, &shutdown);
            port
        };
        let sites = wan.scenario().sites.iter();
        let hosts: Hosts = sites.map(|site| (site.host.clone(), lane.site(site.machine))).collect();
        names.serve(hosts, &tasks, &shutdown);
        let site_port = servers.port();
        let log = servers.serve(&wan, &webs, &tasks, &shutdown);
        let began = CpuTime::now();
        Ok(Self { wan, webs, log, site_port, beacon_port, reserved, network, began, tasks, shutdown })
    }

    pub fn scenario(&self) -> &Scenario {
        self.wan.scenario()
    }

    pub fn names(&self) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(self.wan.lane().names()), NAMES_PORT)
    }

    /// The network of the tun grade; `None` in the rootless grade.
    pub fn network(&self) -> Option<&Network> {
        self.network.as_ref()
    }

    /// The network namespace of an agent. In the rootless grade, all agents are in the namespace of
    /// the host.
    ///
    /// # Panics
    /// Panics if the index is invalid.
    pub fn namespace(&self, agent: usize) -> &NetNamespace {
        self.network.as_ref().map_or(&NetNamespace::HOST, |network| network.agent(agent))
    }

    /// The shortest permitted time between two probes in the sites' logs, if agents wait `left`
    /// between probes. In the rootless grade, this shortest time is `left`. In the tun grade, the
    /// shortest time is zero, because a retransmitted probe may arrive just before the next probe.
    pub fn probe_gap(&self, left: Duration) -> Duration {
        if self.network.is_some() { Duration::ZERO } else { left }
    }

    /// Forwards `port` on each agent's loopback to the same port on the host's loopback, where a
    /// scheduler listens. The forwarding survives restarts of the scheduler. In the rootless grade,
    /// agents need no forwarding.
    pub fn forward(&self, port: u16) -> anyhow::Result<()> {
        match &self.network {
            Some(network) => network.forward(port, &self.tasks, &self.shutdown),
            None => Ok(()),
        }
    }

    /// The port of all beacons and their proxies.
    pub fn beacon_port(&self) -> u16 {
        self.beacon_port
    }

    /// The name under which a site is submitted.
    pub fn site_name(&self, site: usize) -> String {
        format!("http://{}:{}", self.scenario().sites[site].host, self.site_port)
    }

    pub fn site_list(&self) -> String {
        (0..self.scenario().sites.len()).map(|site| self.site_name(site) + "\n").collect()
    }

    /// The lateness of responses in the rootless grade, or of packets in the tun grade.
    pub fn lateness(&self) -> &Lateness {
        self.network.as_ref().map_or_else(|| self.wan.timer().lateness(), Network::lateness)
    }

    /// Stops all servers, and then the network. Stopping the network kills all processes in its
    /// namespaces.
    pub async fn stop(&self) {
        self.shutdown.cancel();
        self.tasks.close();
        if tokio::time::timeout(SHUTDOWN, self.tasks.wait()).await.is_err() {
            tracing::warn!("some of the lab's servers did not end in time");
        }
        if let Some(network) = &self.network {
            network.end();
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn start_network(scenario: Scenario) -> anyhow::Result<Network> {
    tokio::task::spawn_blocking(move || Network::start(&scenario)).await.context("wait for the network")?
}

/// The kind of emulated network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Grade {
    /// Loopback, and servers that delay their answers. Needs no privileges. Connecting takes no
    /// time, and links cannot be cut.
    #[default]
    Rootless,
    /// Network namespaces with delayed and lost packets: kernel TCP, ICMP and cuts are real. Needs
    /// root and /dev/net/tun
    Tun,
}

/// Lateness of the emulated network up to this limit never makes a run void.
const MAX_LATENESS: Duration = Duration::from_millis(3);
/// Minimum fraction of processor time that must be idle for reliable times.
const LEAST_IDLE: f64 = 0.20;

impl World {
    /// Why the timing of a run is void; `None` if it is valid. The timing is void if the 99th
    /// percentile of the lateness exceeds both 3 ms and 5 % of the median round trip, or if the lab
    /// had to drop packets.
    pub fn too_late(&self) -> Option<String> {
        let late = self.lateness().quantile(0.99);
        let allowed = MAX_LATENESS.max(median_rtt(self.scenario()).mul_f64(0.05));
        if late > allowed {
            return Some(format!("the emulated network was late: p99 {late:.1?}, allowed {allowed:.1?}"));
        }
        let overrun = self.network.as_ref().map_or(0, |network| network.traffic().overrun.load(Ordering::Relaxed));
        (overrun > 0).then(|| format!("the lab had no room for {overrun} packets"))
    }

    /// Why the timing since the start of the network is void; `None` if it is valid. The timing is
    /// void if [`Self::too_late`] gives a reason, or if the machine was less idle than
    /// `LEAST_IDLE`.
    pub fn void(&self) -> Option<String> {
        let idle = || CpuTime::now().zip(self.began).map(|(now, began)| now.idle_since(began));
        self.too_late().or_else(|| idle().and_then(too_busy))
    }
}

/// The median round trip over all links of a scenario.
fn median_rtt(scenario: &Scenario) -> Duration {
    let others =
        scenario.mesh.iter().enumerate().flat_map(|(from, row)| {
            row.iter().enumerate().filter(move |(to, _)| *to != from).map(|(_, link)| link.rtt_ms)
        });
    let mut all: Vec<f64> = others.chain(scenario.paths.iter().flatten().map(|link| link.rtt_ms)).collect();
    all.sort_by(f64::total_cmp);
    Duration::from_secs_f64(all.get(all.len() / 2).copied().unwrap_or(0.0) / 1e3)
}

/// Why times are unreliable if only the fraction `idle` of processor time was idle; `None` if the
/// times are reliable.
pub fn too_busy(idle: f64) -> Option<String> {
    let percent = |share: f64| share * 100.0;
    let reason =
        || format!("the machine was only {:.0} % idle; {:.0} % are needed", percent(idle), percent(LEAST_IDLE));
    (idle < LEAST_IDLE).then(reason)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV4;
    use std::time::Instant;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::world::scenario::{Layout, SMALL};

    /// Sends a request, and reads until the response contains `until`. Returns the time until the
    /// first byte, and the response.
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
