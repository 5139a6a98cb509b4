//! Starts and stops the network of the tun grade: a namespace with a device for the servers and for
//! each agent, and the router between them. Also forwards agents' connections to the schedulers,
//! which listen on the host's loopback without TLS.
//!
//! In every agent's namespace, the lab listens on 127.0.0.1 at the scheduler's port, so that the
//! address in the agent's configuration is valid. The lab passes the bytes through the router to a
//! listener in the servers' namespace, and from there to the host. Because the router carries the
//! bytes, its delays and cuts apply to the agents' connections, too.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::net::{TcpSocket, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::namespace::{self, Addresses, NEEDS, NamespaceThread, NetNamespace};
use super::paths_and_cuts::{LinkCuts, PathTable};
use super::router::{Router, Switch, Traffic};
use crate::world::addresses::Lane;
use crate::world::scenario::Scenario;
use crate::world::site_servers::{accept_all, listen};
use crate::world::timer::Lateness;

/// The port of every beacon. The port is always free, because only the beacon listens in an agent's
/// namespace.
pub const BEACON_PORT: u16 = 7180;

/// A running network. Dropping it stops the network.
#[derive(Debug)]
pub struct Network {
    core: NetNamespace,
    agents: Vec<NetNamespace>,
    router: Router,
    cuts: LinkCuts,
    lateness: Arc<Lateness>,
    traffic: Arc<Traffic>,
    /// The forwarded ports. No code holds the lock across an await.
    forwarded: Mutex<Vec<u16>>,
}

impl Network {
    /// Creates the namespaces of a scenario, and starts the router. Blocks for a fraction of a
    /// second. Fails if this machine does not support the tun grade.
    pub fn start(scenario: &Scenario) -> anyhow::Result<Self> {
        let agents = scenario.agents.len();
        // The namespaces are created in parallel, because most of the time is spent waiting for the
        // kernel.
        let made: Vec<anyhow::Result<(NetNamespace, tun_rs::SyncDevice)>> = std::thread::scope(|scope| {
            let making: Vec<_> = (0..=agents).map(|number| scope.spawn(move || namespace_of(number))).collect();
            making
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("panicked"))))
                .collect()
        });
        let (mut namespaces, mut devices) = (Vec::new(), Vec::new());
        for (number, made) in made.into_iter().enumerate() {
            let (namespace, device) = made.with_context(|| format!("make network namespace {number}; {NEEDS}"))?;
            namespaces.push(namespace);
            devices.push(device);
        }
        let core = namespaces.remove(0);
        let (cuts, traffic, lateness) = (LinkCuts::none(agents), Arc::<Traffic>::default(), Arc::<Lateness>::default());
        let paths = PathTable::new(scenario, Lane::TUN, BEACON_PORT);
        let switch = Switch::new(scenario, paths, cuts.clone(), Arc::clone(&traffic), Instant::now());
        let router = Router::start(devices, switch, Arc::clone(&lateness), Arc::clone(&traffic))?;
        Ok(Self { core, agents: namespaces, router, cuts, lateness, traffic, forwarded: Mutex::default() })
    }

    /// The namespace shared by the sites and the lab's servers.
    pub fn core(&self) -> &NetNamespace {
        &self.core
    }

    /// # Panics
    /// Panics if the index is invalid.
    pub fn agent(&self, index: usize) -> &NetNamespace {
        &self.agents[index]
    }

    /// The cuts of the agents' links, which can be changed at any time.
    pub fn cuts(&self) -> &LinkCuts {
        &self.cuts
    }

    /// The lateness of delivered packets.
    pub fn lateness(&self) -> &Lateness {
        &self.lateness
    }

    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// Forwards `port` on each agent's loopback to the same port on the host's loopback, where a
    /// scheduler listens. The forwarding survives restarts of the scheduler. Forwarding a port
    /// again has no effect.
    pub fn forward(&self, port: u16, tasks: &TaskTracker, shutdown: &CancellationToken) -> anyhow::Result<()> {
        let mut forwarded = self.forwarded.lock().unwrap_or_else(PoisonError::into_inner);
        if !forwarded.contains(&port) {
            forward_to_schedulers(port, Lane::TUN.schedulers(), &self.core, &self.agents, tasks, shutdown)?;
            forwarded.push(port);
        }
        Ok(())
    }

    /// Stops the network, and kills the processes in its namespaces.
    pub fn end(&self) {
        self.router.end();
        self.agents.iter().for_each(NetNamespace::end);
        self.core.end();
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.end();
    }
}

/// Creates a namespace. Number 0 is for the servers, and number n for agent n - 1.
fn namespace_of(number: usize) -> anyhow::Result<(NetNamespace, tun_rs::SyncDevice)> {
    let (name, addresses) = match number.checked_sub(1) {
        None => ("wan-core".to_owned(), Addresses::All(Lane::TUN.server_networks().to_vec())),
        Some(agent) => (format!("wan-agent-{agent}"), Addresses::One(Lane::TUN.agent(agent))),
    };
    let namespace = NetNamespace::inside(NamespaceThread::start(&name)?);
    let device = namespace::set_up(&namespace, addresses)?;
    Ok((namespace, device))
}

/// Time limit for a connection through the network. The time limit of agents is shorter.
const CONNECT: Duration = Duration::from_secs(30);

/// The next stage of a forwarded connection.
#[derive(Debug, Clone)]
struct NextHop {
    /// The namespace from which to connect.
    from: NetNamespace,
    address: SocketAddr,
    /// Whether `address` is on the host's loopback. If so, each agent has its own source address,
    /// as in the rootless grade. If the source address were 127.0.0.1, a connection to the port of
    /// a stopped scheduler could connect to itself.
    host: bool,
}

/// Forwards a port on every agent's loopback to the same port on the host's loopback, until
/// `shutdown` is cancelled. Fails if the port is in use in a namespace.
fn forward_to_schedulers(
    port: u16,
    schedulers: Ipv4Addr,
    core: &NetNamespace,
    agents: &[NetNamespace],
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let (gate, local) = (SocketAddr::new(schedulers.into(), port), SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    let start = |namespace: &NetNamespace, address: SocketAddr, next: NextHop| -> anyhow::Result<()> {
        let listener = namespace.run(move || listen(address))?.with_context(|| format!("listen on {address}"))?;
        accept_all(listener, "the way to a scheduler", tasks, shutdown, move |stream, peer| {
            let next = next.clone();
            async move {
                if let Err(error) = pass_on(stream, peer, &next).await {
                    tracing::debug!(error = format!("{error:#}"), "a forwarded connection ended");
                }
            }
        });
        Ok(())
    };
    start(core, gate, NextHop { from: NetNamespace::HOST, address: local, host: true })?;
    for agent in agents {
        start(agent, local, NextHop { from: agent.clone(), address: gate, host: false })?;
    }
    Ok(())
}

/// Passes bytes in both directions until one side closes its connection, and then closes the other
/// connection. Agents and schedulers never close only one direction.
async fn pass_on(mut near: TcpStream, peer: IpAddr, next: &NextHop) -> anyhow::Result<()> {
    let socket = next.from.run(TcpSocket::new_v4)?.context("make a socket")?;
    if next.host {
        let source = on_loopback(peer).context("the agent has no IPv4 address")?;
        socket.bind(SocketAddr::new(source.into(), 0)).with_context(|| format!("bind {source}"))?;
    }
    let connected = tokio::time::timeout(CONNECT, socket.connect(next.address)).await.context("connect in time")?;
    let mut far = connected.with_context(|| format!("connect to {}", next.address))?;
    near.set_nodelay(true).context("set nodelay")?;
    far.set_nodelay(true).context("set nodelay")?;
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) = (near.split(), far.split());
    tokio::select! {
        passed = tokio::io::copy(&mut near_in, &mut far_out) => passed.context("pass bytes on")?,
        passed = tokio::io::copy(&mut far_in, &mut near_out) => passed.context("pass bytes back")?,
    };
    Ok(())
}

/// The loopback address (127.x.x.x) with the last three octets of `address`; `None` for IPv6.
fn on_loopback(address: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V4(address) = address else { return None };
    let [_, second, third, fourth] = address.octets();
    Some(Ipv4Addr::new(127, second, third, fourth))
}
