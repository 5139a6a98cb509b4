//! Delays the responses of sites and beacons in the rootless grade, as the links of the scenario
//! would. In the tun grade, [`crate::world::tun`] delays packets instead.
//!
//! In the rootless grade, the source address identifies the agent. A handshake on loopback takes no
//! time, so the first response on a connection takes two round trips, and later responses take one.
//! Bodies follow [`crate::world::reno`], and share the agent's access link. Loss affects only
//! bodies.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

use crate::world::addresses::Lane;
use crate::world::reno;
use crate::world::scenario::{Link, Scenario};
use crate::world::timer::Timer;

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
    /// The times when the agents' access links become free again.
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
    use std::net::Ipv4Addr;

    use super::*;
    use crate::world::layout::{Layout, SMALL};

    fn wan() -> Wan {
        let scenario = Layout::parse(SMALL, "small.toml").unwrap().scenario(None, None).unwrap();
        Wan::new(scenario, Lane::new(0).unwrap(), Timer::start().unwrap())
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
