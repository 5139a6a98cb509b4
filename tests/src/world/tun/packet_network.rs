//! Starts and stops the network of the tun grade: a namespace with a device for the servers and for
//! each agent, and the router between them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::cuts::LinkCuts;
use super::delay_and_loss::{Switch, Traffic};
use super::device_and_routes::{self, Addresses};
use super::forward_to_schedulers::forward_to_schedulers;
use super::namespace::{NamespaceThread, NetNamespace};
use super::paths::PathTable;
use super::requirements::NEEDS;
use super::router::Router;
use crate::world::addresses::Lane;
use crate::world::lateness::Lateness;
use crate::world::scenario::Scenario;

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
    let device = device_and_routes::set_up(&namespace, addresses)?;
    Ok((namespace, device))
}
