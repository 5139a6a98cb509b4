//! Delays the responses of sites and beacons in the rootless grade, as the links of the scenario
//! do, and simulates TCP Reno to compute when the parts of a body arrive.
//!
//! In the rootless grade, the source address identifies the agent. A handshake on loopback takes no
//! time, so the first response on a connection takes two round trips, and later responses take one.
//! Bodies follow the simulated TCP, and share the agent's access link. Loss affects only bodies. In
//! the tun grade, [`super::tun`] delays packets instead.
//!
//! The simulation of TCP proceeds in rounds of one round trip each. The first window is ten
//! segments. In slow start, the window doubles in each round. A loss halves the window and ends
//! slow start. After slow start, the window grows by one segment per round. The maximum window is
//! the number of segments that the link can transmit in one round trip. A lost segment is sent
//! again in the next round. The round trips of the handshake and the request are added to the
//! simulated time.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::rngs::ChaCha8Rng;
use rand::{Rng, RngExt, SeedableRng};

use super::addresses::Lane;
use super::scenario::{Link, Scenario};
use super::timer::Timer;

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
        let bytes_per_s = self.wan.state.scenario.agent_bytes_per_s;
        let path = Path { rtt: link.rtt(), loss: link.loss, bytes_per_s };
        let arrivals = self.draw(|rng| rounds(body, path, rng));
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
        let bytes_per_s = self.wan.state.scenario.agent_bytes_per_s;
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

/// Size of a full segment in bytes.
const SEGMENT: usize = 1460;
const INITIAL_WINDOW: usize = 10;
/// Minimum window after a loss, in segments.
const LEAST_WINDOW: usize = 2;

#[derive(Debug, Clone, Copy)]
pub struct Path {
    pub rtt: Duration,
    /// The probability that a packet is lost, 0 to 1.
    pub loss: f64,
    pub bytes_per_s: f64,
}

/// The number of bytes that arrive in each round. The bytes of the first round arrive together with
/// the header of the response.
pub fn rounds(body: usize, path: Path, rng: &mut impl Rng) -> Vec<usize> {
    let most = (whole(path.bytes_per_s * path.rtt.as_secs_f64()) / SEGMENT).max(LEAST_WINDOW);
    let mut window = INITIAL_WINDOW.min(most);
    let mut slow_start_until = usize::MAX;
    let mut left = body;
    let mut arrivals = Vec::new();
    while left > 0 {
        let sent = left.min(window * SEGMENT);
        let segments = sent.div_ceil(SEGMENT);
        let lost = (0..segments).filter(|_| path.loss > 0.0 && rng.random_bool(path.loss)).count();
        let arrived = sent - (lost * SEGMENT).min(sent);
        arrivals.push(arrived);
        left -= arrived;
        if lost > 0 {
            window = (window / 2).max(LEAST_WINDOW);
            slow_start_until = window;
        } else if window < slow_start_until {
            window = (window * 2).min(most);
        } else {
            window = (window + 1).min(most);
        }
    }
    arrivals
}

/// Rounds a non-negative float down to an integer. Large values saturate.
fn whole(bytes: f64) -> usize {
    let micros = Duration::try_from_secs_f64(bytes / 1e6).map_or(u128::from(u32::MAX), |scaled| scaled.as_micros());
    usize::try_from(micros).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rand::SeedableRng;
    use rand::rngs::ChaCha8Rng;

    use super::*;
    use crate::world::scenario::{Layout, SMALL};

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

    fn path(rtt_ms: u64, loss: f64) -> Path {
        Path { rtt: Duration::from_millis(rtt_ms), loss, bytes_per_s: 2.5e6 }
    }

    fn count(body: usize, path: Path) -> usize {
        rounds(body, path, &mut ChaCha8Rng::seed_from_u64(1)).len()
    }

    #[test]
    fn without_loss_the_window_doubles_until_the_rate_holds_it() {
        let arrivals = rounds(100_000, path(100, 0.0), &mut ChaCha8Rng::seed_from_u64(1));
        assert_eq!(arrivals, [14_600, 29_200, 56_200]);
        // At 2.5 MB/s, a link transmits 171 whole segments in a round of 100 ms.
        let arrivals = rounds(2_000_000, path(100, 0.0), &mut ChaCha8Rng::seed_from_u64(1));
        assert_eq!(arrivals[3], 80 * SEGMENT);
        assert!(arrivals.iter().all(|round| *round <= 171 * SEGMENT), "{arrivals:?}");
    }

    #[test]
    fn a_small_page_comes_in_one_round_and_nothing_in_none() {
        assert_eq!(count(12_000, path(50, 0.0)), 1);
        assert_eq!(count(0, path(50, 0.0)), 0);
    }

    #[test]
    fn loss_costs_rounds_and_every_byte_still_arrives() {
        let lossy = rounds(2_000_000, path(100, 0.01), &mut ChaCha8Rng::seed_from_u64(3));
        assert_eq!(lossy.iter().sum::<usize>(), 2_000_000);
        assert!(lossy.len() > 2 * count(2_000_000, path(100, 0.0)), "{} rounds", lossy.len());
    }

    #[test]
    fn on_a_short_path_the_rate_is_the_limit() {
        // At 2.5 MB/s, a link transmits 3 segments in a round of 2 ms.
        assert_eq!(count(43_800, path(2, 0.0)), 10);
    }
}
