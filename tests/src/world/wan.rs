//! The server side of the emulated WAN: its addresses, and the delays of sites and beacons in the
//! rootless grade. In the tun grade, [`crate::world::tun`] delays packets instead.
//!
//! In the rootless grade, the source address identifies the agent. A handshake on loopback takes no
//! time, so the first response on a connection takes two round trips, and later responses take one.
//! Bodies follow [`crate::world::reno`], and share the agent's access link. Loss affects only
//! bodies.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::world::reno;
use crate::world::scenario::{Link, Scenario};
use crate::world::timer::Timer;

/// Number of hosts per third octet of an address. The fourth octets are 1 to 250.
const HOSTS_PER_OCTET: usize = 250;
/// Number of lanes. Each lab uses the addresses of one lane, so that several labs can run at the
/// same time.
pub const LANES: u8 = 24;

/// The first octet of addresses in the rootless grade, which are on loopback.
const LOOPBACK: u8 = 127;
/// The first octet of addresses in the tun grade, which are in a private network.
const PRIVATE: u8 = 10;
const AGENTS: u8 = 1;
const SITES: u8 = 2;
const BEACON_PROXIES: u8 = 3;
const NAMES: u8 = 4;
const SCHEDULERS: u8 = 5;

/// The addresses of one lab. In lane 0, addresses of agents begin with 127.1, of sites with 127.2,
/// of beacon proxies with 127.3, and of the name server with 127.4. In the tun grade, the first
/// octet is 10, there are no beacon proxies, and agents reach the schedulers through 10.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane {
    first: u8,
    number: u8,
}

impl Lane {
    /// The lane of the tun grade. One lane is enough, because every lab has its own network
    /// namespaces.
    pub const TUN: Self = Self { first: PRIVATE, number: 0 };

    /// A lane of the rootless grade; `None` unless `number` is below [`LANES`].
    pub fn new(number: u8) -> Option<Self> {
        (number < LANES).then_some(Self { first: LOOPBACK, number })
    }

    /// Whether this is the lane of the tun grade, in which packets are delayed instead of
    /// responses.
    pub fn is_tun(self) -> bool {
        self == Self::TUN
    }

    fn address(self, block: u8, index: usize) -> Ipv4Addr {
        let third = u8::try_from(index / HOSTS_PER_OCTET).unwrap_or(u8::MAX);
        let fourth = u8::try_from(index % HOSTS_PER_OCTET + 1).unwrap_or(u8::MAX);
        Ipv4Addr::new(self.first, self.number * 10 + block, third, fourth)
    }

    /// The index of an address in a block; `None` if the address is not in the block, or the index
    /// is not below `count`.
    fn index(self, block: u8, address: Ipv4Addr, count: usize) -> Option<usize> {
        let [_, _, third, fourth] = address.octets();
        let index = usize::from(third) * HOSTS_PER_OCTET + usize::from(fourth).checked_sub(1)?;
        (index < count && self.address(block, index) == address).then_some(index)
    }

    pub fn agent(self, index: usize) -> Ipv4Addr {
        self.address(AGENTS, index)
    }

    /// The address of a machine, on which its sites listen.
    pub fn site(self, index: usize) -> Ipv4Addr {
        self.address(SITES, index)
    }

    /// The address at which other agents reach an agent's beacon.
    pub fn beacon(self, index: usize) -> Ipv4Addr {
        self.address(if self.is_tun() { AGENTS } else { BEACON_PROXIES }, index)
    }

    pub fn names(self) -> Ipv4Addr {
        self.address(NAMES, 0)
    }

    /// The address through which agents reach the schedulers in the tun grade.
    pub fn schedulers(self) -> Ipv4Addr {
        self.address(SCHEDULERS, 0)
    }

    /// The networks of sites, name server and schedulers, as `address/bits`.
    pub fn server_networks(self) -> [String; 3] {
        [SITES, NAMES, SCHEDULERS].map(|block| format!("{}.{}.0.0/16", self.first, self.number * 10 + block))
    }

    /// The network with all addresses, as `address/bits`.
    pub fn network(self) -> String {
        format!("{}.0.0.0/8", self.first)
    }

    pub fn agent_at(self, address: IpAddr, agents: usize) -> Option<usize> {
        let IpAddr::V4(address) = address else { return None };
        self.index(AGENTS, address, agents)
    }

    pub fn machine_at(self, address: Ipv4Addr, machines: usize) -> Option<usize> {
        self.index(SITES, address, machines)
    }
}

#[derive(Debug, Clone, Copy)]
pub enum Destination {
    Site(usize),
    /// The index of the beacon's agent.
    Beacon(usize),
}

/// The server side of a scenario's emulated WAN. Clones share the state.
#[derive(Debug, Clone)]
pub struct Wan {
    state: Arc<WanState>,
}

#[derive(Debug)]
struct WanState {
    scenario: Scenario,
    lane: Lane,
    timer: Timer,
    /// The times when the access links of agents are free again.
    links: Vec<Mutex<Instant>>,
    connections: AtomicU64,
}

impl Wan {
    pub fn new(scenario: Scenario, lane: Lane, timer: Timer) -> Self {
        let now = Instant::now();
        let links = scenario.agents.iter().map(|_| Mutex::new(now)).collect();
        Self { state: Arc::new(WanState { scenario, lane, timer, links, connections: AtomicU64::new(0) }) }
    }

    pub fn scenario(&self) -> &Scenario {
        &self.state.scenario
    }

    pub fn lane(&self) -> Lane {
        self.state.lane
    }

    pub fn timer(&self) -> &Timer {
        &self.state.timer
    }

    /// A connection from `source`. The connection has no delay in the tun grade, or if no agent has
    /// the address `source`.
    pub fn connect(&self, source: IpAddr, destination: Destination) -> Connection {
        let scenario = &self.state.scenario;
        let agent = self.state.lane.agent_at(source, scenario.agents.len());
        let link = agent.filter(|_| !self.state.lane.is_tun()).and_then(|agent| match destination {
            Destination::Site(site) => scenario.paths[agent].get(site).copied(),
            Destination::Beacon(other) => scenario.mesh[agent].get(other).copied(),
        });
        let number = self.state.connections.fetch_add(1, Ordering::Relaxed);
        let rng = ChaCha8Rng::seed_from_u64(scenario.seed ^ number.rotate_left(32));
        Connection { wan: self.clone(), agent, link, used: AtomicBool::new(false), rng: Mutex::new(rng) }
    }
}

#[derive(Debug)]
pub struct Connection {
    wan: Wan,
    agent: Option<usize>,
    link: Option<Link>,
    used: AtomicBool,
    /// Draws jitter and loss. No code holds the lock across an await.
    rng: Mutex<ChaCha8Rng>,
}

impl Connection {
    /// The agent with the source address; `None` if there is none.
    pub fn agent(&self) -> Option<usize> {
        self.agent
    }

    /// Waits until the first byte of a response may be sent.
    pub async fn first_byte(&self, arrived: Instant, thinking: Duration) {
        let first = !self.used.swap(true, Ordering::Relaxed);
        let Some(link) = self.link else {
            if self.agent.is_some() && !thinking.is_zero() {
                self.wait(arrived + thinking).await;
            }
            return;
        };
        let trips = if first { 2 } else { 1 };
        let jitter_ms = self.wan.state.scenario.jitter_ms;
        let share: f64 = self.draw(|rng| rng.random_range(0.0..1.0));
        let jitter = Duration::from_secs_f64(jitter_ms * share / 1e3);
        self.wan.state.timer.sleep_until(arrived + link.rtt() * trips + jitter + thinking).await;
    }

    /// The times at which the parts of a body may be sent, with the sizes of the parts. The first
    /// time is `first_byte`, unless the access link is busy.
    pub fn schedule(&self, body: usize, first_byte: Instant) -> Vec<(Instant, usize)> {
        let (Some(link), Some(agent)) = (self.link, self.agent) else { return vec![(first_byte, body)] };
        let bytes_per_s = self.wan.state.scenario.bytes_per_s(agent);
        let path = reno::Path { rtt: link.rtt(), loss: link.loss, bytes_per_s };
        let arrivals = self.draw(|rng| reno::rounds(body, path, rng));
        let mut round = first_byte;
        let mut releases = Vec::with_capacity(arrivals.len());
        for bytes in arrivals {
            releases.push((self.take_link(agent, round, bytes), bytes));
            round += link.rtt();
        }
        releases
    }

    /// Queues bytes on the agent's access link, and returns the time when they pass the link. If
    /// the link is free, the bytes pass immediately, because the round trip already includes their
    /// transmission time.
    fn take_link(&self, agent: usize, from: Instant, bytes: usize) -> Instant {
        let bytes_per_s = self.wan.state.scenario.bytes_per_s(agent);
        let on_wire = Duration::from_secs_f64(f64::from(u32::try_from(bytes).unwrap_or(u32::MAX)) / bytes_per_s);
        let mut taken = self.wan.state.links[agent].lock().unwrap_or_else(PoisonError::into_inner);
        let begins = from.max(*taken);
        *taken = begins + on_wire;
        begins
    }

    pub async fn wait(&self, until: Instant) {
        self.wan.state.timer.sleep_until(until).await;
    }

    fn draw<T>(&self, draw: impl FnOnce(&mut ChaCha8Rng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::layout::{Layout, SMALL};

    fn wan() -> Wan {
        let scenario = Layout::parse(SMALL, "small.toml").unwrap().scenario(None, None).unwrap();
        Wan::new(scenario, Lane::new(0).unwrap(), Timer::start().unwrap())
    }

    #[test]
    fn addresses_identify_agents_and_lanes_do_not_overlap() {
        let lane = Lane::new(0).unwrap();
        assert_eq!(lane.agent(0), Ipv4Addr::new(127, 1, 0, 1));
        assert_eq!(lane.site(250), Ipv4Addr::new(127, 2, 1, 1));
        for index in [0, 29, 249, 250] {
            assert_eq!(lane.agent_at(lane.agent(index).into(), 300), Some(index));
        }
        assert_eq!(lane.agent_at(lane.agent(29).into(), 29), None);
        assert_eq!(lane.agent_at(Ipv4Addr::LOCALHOST.into(), 300), None);
        assert_eq!(lane.agent_at(Lane::new(1).unwrap().agent(3).into(), 300), None);
        assert_eq!(Lane::new(LANES - 1).unwrap().names(), Ipv4Addr::new(127, 234, 0, 1));
        assert_eq!(lane.beacon(2), Ipv4Addr::new(127, 3, 0, 3));
        assert_eq!(Lane::TUN.beacon(2), Lane::TUN.agent(2));
        assert_eq!(Lane::TUN.server_networks(), ["10.2.0.0/16", "10.4.0.0/16", "10.5.0.0/16"]);
        assert_eq!(lane.machine_at(lane.site(250), 251), Some(250));
        assert_eq!(lane.machine_at(lane.agent(0), 251), None);
    }

    #[tokio::test]
    async fn the_first_request_costs_two_round_trips_and_the_next_one() {
        let wan = wan();
        let link = wan.scenario().paths[2][5];
        let connection = wan.connect(wan.lane().agent(2).into(), Destination::Site(5));
        for trips in [2, 1, 1] {
            let arrived = Instant::now();
            connection.first_byte(arrived, Duration::ZERO).await;
            let took = arrived.elapsed();
            assert!(took >= link.rtt() * trips, "{took:?} for {trips} of {link:?}");
            assert!(took < link.rtt() * trips + Duration::from_secs(1), "{took:?} for {trips} of {link:?}");
        }
    }

    #[test]
    fn two_bodies_share_the_agents_access_link() {
        let wan = wan();
        let start = Instant::now();
        let one = wan.connect(wan.lane().agent(0).into(), Destination::Site(0)).schedule(10_000, start);
        let two = wan.connect(wan.lane().agent(0).into(), Destination::Site(1)).schedule(1_000, start);
        assert_eq!(one[0].0, start);
        // 10,000 bytes take 4 ms at 20 Mbit/s.
        assert!(two[0].0 >= start + Duration::from_millis(3), "{:?}", two[0].0 - start);
        let stranger = wan.connect(Ipv4Addr::LOCALHOST.into(), Destination::Site(0)).schedule(9_999, start);
        assert_eq!(stranger, [(start, 9_999)]);
    }
}
