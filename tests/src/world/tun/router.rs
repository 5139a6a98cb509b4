//! The router: one thread that carries packets between all TUN devices. It delays, drops and queues
//! packets in transit, delivers them when they are due, and records its lateness.
//!
//! The router runs at normal priority. In single runs with 50 concurrent handshakes, real-time
//! priority reduced the 95th percentile of its lateness from 1.8 ms to 0.3 ms. But with 800
//! concurrent handshakes, real-time priority increased the lateness of the endpoints from 6 ms to
//! 32 ms. The recorded lateness does not include that of the endpoints.
//!
//! Delays and losses are computed without devices and without a clock. A packet passes its sender's
//! access link, is in transit for half the round trip, and then passes its receiver's access link.
//! If a link is free, the packet passes immediately, because the round trip already includes its
//! transmission time. If a link is busy, the packet waits. If the link's queue is full, the packet
//! is lost. Packets of one path never overtake each other.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use tun_rs::SyncDevice;

use super::namespace::MTU;
use super::paths_and_cuts::{CutDirection, LinkCuts, PacketPath, PathTable};
use crate::world::scenario::Scenario;
use crate::world::timer::Lateness;

/// Maximum number of packets that the router reads from one device, or delivers, at a time. The
/// limit keeps one device from starving the others.
const BATCH: usize = 64;
/// Maximum number of events that one call of epoll returns.
const EVENTS: usize = 64;
/// Epoll data of the timer and the stop event. The epoll data of a device is its index.
const DUE: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// A running router. Dropping it stops the router.
#[derive(Debug)]
pub(super) struct Router {
    stop: Arc<EventFd>,
    /// `None` after `end`.
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state of the router's thread.
struct RouterLoop {
    devices: Vec<SyncDevice>,
    switch: Switch,
    epoll: Epoll,
    due: TimerFd,
    /// The expiry of the timer; `None` if the timer is not set.
    armed: Option<Instant>,
    lateness: Arc<Lateness>,
    traffic: Arc<Traffic>,
}

impl Router {
    pub(super) fn start(
        devices: Vec<SyncDevice>,
        switch: Switch,
        lateness: Arc<Lateness>,
        traffic: Arc<Traffic>,
    ) -> anyhow::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("make an event queue")?;
        let stop = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC).context("make an event")?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let due = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags).context("make a timer")?;
        let readable = |number| EpollEvent::new(EpollFlags::EPOLLIN, number);
        for (number, device) in (0..).zip(&devices) {
            epoll.add(device, readable(number)).context("watch a TUN device")?;
        }
        epoll.add(&due, readable(DUE)).context("watch the timer")?;
        epoll.add(&stop, readable(STOP)).context("watch for the end")?;
        let mut serve = RouterLoop { devices, switch, epoll, due, armed: None, lateness, traffic };
        let thread = std::thread::Builder::new().name("wan-router".to_owned());
        let thread = thread
            .spawn(move || {
                if let Err(error) = serve.run() {
                    tracing::error!(%error, "the router of the emulated network ended");
                }
            })
            .context("start the router's thread")?;
        Ok(Self { stop: Arc::new(stop), thread: Mutex::new(Some(thread)) })
    }

    /// Ends the thread and closes the devices.
    pub(super) fn end(&self) {
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        if let Err(error) = self.stop.write(1) {
            return tracing::warn!(%error, "the router could not be told to end");
        }
        if thread.join().is_err() {
            tracing::warn!("the router panicked");
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.end();
    }
}

impl RouterLoop {
    fn run(&mut self) -> nix::Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut packet = vec![0_u8; MTU];
        loop {
            let more = self.hand_over();
            let timeout = if more { EpollTimeout::ZERO } else { EpollTimeout::NONE };
            if !more {
                self.arm()?;
            }
            let count = match self.epoll.wait(&mut events, timeout) {
                Err(Errno::EINTR) => 0,
                waited => waited?,
            };
            for event in &events[..count] {
                match event.data() {
                    STOP => return Ok(()),
                    DUE => self.disarm()?,
                    device => self.take_in(usize::try_from(device).unwrap_or(usize::MAX), &mut packet),
                }
            }
        }
    }

    /// Delivers packets that are due. Returns whether more packets may be due.
    fn hand_over(&mut self) -> bool {
        for _ in 0..BATCH {
            let Some(DuePacket { device, due, packet }) = self.switch.arrive(Instant::now()) else { return false };
            let sent = self.devices[device].send(&packet);
            self.lateness.note(Instant::now().saturating_duration_since(due));
            let counter = if sent.is_ok() { &self.traffic.carried } else { &self.traffic.overrun };
            counter.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = sent {
                tracing::debug!(%error, device, "a TUN device took no packet");
            }
        }
        true
    }

    /// Sets the timer to the time at which the next packet is due.
    fn arm(&mut self) -> nix::Result<()> {
        let next = self.switch.next_due();
        if next == self.armed {
            return Ok(());
        }
        self.armed = next;
        let Some(next) = next else { return self.due.unset() };
        // The wait is at least one nanosecond, because zero would disable the timer.
        let wait = next.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
        self.due.set(Expiration::OneShot(TimeSpec::from_duration(wait)), TimerSetTimeFlags::empty())
    }

    /// Clears the expired timer, because epoll would otherwise report it again.
    fn disarm(&mut self) -> nix::Result<()> {
        self.armed = None;
        match self.due.wait() {
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(()),
            waited => waited,
        }
    }

    fn take_in(&mut self, device: usize, packet: &mut [u8]) {
        for _ in 0..BATCH {
            match self.devices[device].recv(packet) {
                Ok(length) => self.switch.enter(Instant::now(), device, &packet[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => return self.complain(device, &error),
            }
        }
    }

    fn complain(&self, device: usize, error: &Error) {
        self.traffic.overrun.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(%error, device, "a TUN device gave no packet");
    }
}

/// Maximum time for which a packet waits for an agent's access link, in each direction. With a
/// longer queue, packets would spend more time waiting than in transit, so distance would hardly
/// affect throughput. With a shorter queue, a single connection would not use the full rate of the
/// link.
const ACCESS_QUEUE: Duration = Duration::from_millis(50);
/// Maximum number of packets in transit (150 MB). The limit is far above the number of packets that
/// the router carries in one round trip.
const MAX_HELD: usize = 100_000;

/// Counts of packets, by result.
#[derive(Debug, Default)]
pub struct Traffic {
    pub carried: AtomicU64,
    /// Packets lost at random by the loss of the scenario.
    pub lost: AtomicU64,
    /// Packets lost because a link's queue was full.
    pub queue_full: AtomicU64,
    /// Packets lost because a link was cut.
    pub cut: AtomicU64,
    /// Packets dropped as invalid: they were not IPv4, or came from or went to an unknown address.
    pub strange: AtomicU64,
    /// Packets lost because the lab could not store or deliver them. The timing of a run with such
    /// packets is void.
    pub overrun: AtomicU64,
}

/// The packets in transit, and the state of the links.
#[derive(Debug)]
pub(super) struct Switch {
    paths: PathTable,
    cuts: LinkCuts,
    traffic: Arc<Traffic>,
    bytes_per_s: f64,
    jitter: Duration,
    access_queue: Duration,
    /// The time when each agent's link becomes free again for packets from the agent. `down` has
    /// the times for packets to the agent.
    up: Vec<Instant>,
    down: Vec<Instant>,
    /// The arrival time of the newest packet of each path, indexed by [`PacketPath::key`].
    last: Vec<Instant>,
    /// The packets by due time, and for equal due times in the order of their arrival.
    in_transit: BTreeMap<(Instant, u64), QueuedPacket>,
    sequence: u64,
    rng: ChaCha8Rng,
}

#[derive(Debug)]
struct QueuedPacket {
    path: PacketPath,
    /// Whether the packet has already passed the receiver's access link.
    admitted: bool,
    packet: Vec<u8>,
}

/// A packet to deliver.
#[derive(Debug)]
struct DuePacket {
    /// The index of the device that delivers the packet.
    device: usize,
    due: Instant,
    packet: Vec<u8>,
}

impl Switch {
    pub(super) fn new(
        scenario: &Scenario,
        paths: PathTable,
        cuts: LinkCuts,
        traffic: Arc<Traffic>,
        now: Instant,
    ) -> Self {
        let agents = scenario.agents.len();
        Self {
            cuts,
            traffic,
            bytes_per_s: scenario.agent_bytes_per_s,
            jitter: Duration::from_secs_f64(scenario.jitter_ms / 1e3),
            access_queue: ACCESS_QUEUE,
            up: vec![now; agents],
            down: vec![now; agents],
            last: vec![now; paths.keys()],
            in_transit: BTreeMap::new(),
            sequence: 0,
            rng: ChaCha8Rng::seed_from_u64(scenario.seed),
            paths,
        }
    }

    /// Accepts a packet that came from `device`.
    fn enter(&mut self, now: Instant, device: usize, packet: &[u8]) {
        let Some(path) = self.paths.path_of(device, packet) else { return count(&self.traffic.strange) };
        if path.sender.is_some_and(|agent| self.cuts.of(agent).is_some_and(CutDirection::loses_from)) {
            return count(&self.traffic.cut);
        }
        if self.rng.random_range(0.0..1.0) < path.loss {
            return count(&self.traffic.lost);
        }
        if self.in_transit.len() >= MAX_HELD {
            return count(&self.traffic.overrun);
        }
        let (bytes_per_s, queue) = (self.bytes_per_s, self.access_queue);
        let passed =
            path.sender.map_or(Some(now), |agent| pass(&mut self.up[agent], now, packet.len(), bytes_per_s, queue));
        let Some(passed) = passed else { return count(&self.traffic.queue_full) };
        let due = (passed + path.delay + self.random_delay(&path)).max(self.last[path.key]);
        self.last[path.key] = due;
        self.hold(due, path, false, packet.to_vec());
    }

    /// Removes and returns the next packet that is due.
    fn arrive(&mut self, now: Instant) -> Option<DuePacket> {
        while let Some(first) = self.in_transit.first_entry().filter(|first| first.key().0 <= now) {
            let ((due, _), QueuedPacket { path, admitted, packet }) = first.remove_entry();
            if path.receiver.is_some_and(|agent| self.cuts.of(agent).is_some_and(CutDirection::loses_towards)) {
                count(&self.traffic.cut);
                continue;
            }
            let arrival = DuePacket { device: path.device, due, packet };
            let Some(agent) = path.receiver.filter(|_| !admitted) else { return Some(arrival) };
            let link = &mut self.down[agent];
            match pass(link, due, arrival.packet.len(), self.bytes_per_s, self.access_queue) {
                None => count(&self.traffic.queue_full),
                Some(passed) if passed > now => self.hold(passed, path, true, arrival.packet),
                Some(passed) => return Some(DuePacket { due: passed, ..arrival }),
            }
        }
        None
    }

    /// The time when the next packet is due; `None` if no packet is in transit.
    fn next_due(&self) -> Option<Instant> {
        self.in_transit.first_key_value().map(|((due, _), _)| *due)
    }

    fn hold(&mut self, due: Instant, path: PacketPath, admitted: bool, packet: Vec<u8>) {
        self.sequence += 1;
        self.in_transit.insert((due, self.sequence), QueuedPacket { path, admitted, packet });
    }

    /// Draws the random delay of a packet. Only packets to an agent are delayed at random, so a
    /// round trip between an agent and a server has jitter in one direction only.
    fn random_delay(&mut self, path: &PacketPath) -> Duration {
        if path.receiver.is_none() || self.jitter.is_zero() {
            return Duration::ZERO;
        }
        self.jitter.mul_f64(self.rng.random_range(0.0..1.0))
    }
}

/// Queues a packet on an access link, and returns the time when the packet passes; `None` if the
/// queue is full.
fn pass(free: &mut Instant, now: Instant, bytes: usize, bytes_per_s: f64, queue: Duration) -> Option<Instant> {
    let begins = now.max(*free);
    if begins - now > queue {
        return None;
    }
    let bytes = f64::from(u32::try_from(bytes).unwrap_or(u32::MAX));
    *free = begins + Duration::from_secs_f64(bytes / bytes_per_s);
    Some(begins)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::addresses::Lane;
    use crate::world::scenario::{Layout, SMALL};
    use crate::world::tun::paths_and_cuts::CORE;

    struct TestSwitch {
        switch: Switch,
        scenario: Scenario,
        cuts: LinkCuts,
        traffic: Arc<Traffic>,
        start: Instant,
    }

    fn bench(change: impl FnOnce(&mut Scenario)) -> TestSwitch {
        let mut scenario = Layout::parse(SMALL, "small.toml").unwrap().scenario(None, None).unwrap();
        scenario.paths.iter_mut().flatten().for_each(|link| link.loss = 0.0);
        change(&mut scenario);
        let (cuts, traffic, start) = (LinkCuts::none(scenario.agents.len()), Arc::default(), Instant::now());
        let paths = PathTable::new(&scenario, Lane::TUN, 7180);
        let switch = Switch::new(&scenario, paths, cuts.clone(), Arc::clone(&traffic), start);
        TestSwitch { switch, scenario, cuts, traffic, start }
    }

    fn to_site(bytes: usize) -> Vec<u8> {
        packet(Lane::TUN.agent(2), Lane::TUN.site(5), bytes)
    }

    fn to_agent(bytes: usize) -> Vec<u8> {
        packet(Lane::TUN.site(5), Lane::TUN.agent(2), bytes)
    }

    fn packet(from: std::net::Ipv4Addr, to: std::net::Ipv4Addr, bytes: usize) -> Vec<u8> {
        let mut packet = vec![0_u8; bytes];
        packet[0] = 0x45;
        packet[12..16].copy_from_slice(&from.octets());
        packet[16..20].copy_from_slice(&to.octets());
        packet
    }

    impl TestSwitch {
        /// The arrival times of all packets in transit, relative to the start of the test.
        fn arrivals(&mut self) -> Vec<Duration> {
            let mut seen = Vec::new();
            while let Some(due) = self.switch.next_due() {
                seen.extend(self.switch.arrive(due).map(|arrival| arrival.due - self.start));
            }
            seen
        }

        fn half(&self) -> Duration {
            self.scenario.paths[2][5].rtt() / 2
        }
    }

    #[test]
    fn nothing_arrives_before_half_the_round_trip() {
        let mut bench = bench(|_| {});
        bench.switch.enter(bench.start, 3, &to_site(100));
        let half = bench.half();
        assert!(bench.switch.arrive(bench.start + half - Duration::from_nanos(1)).is_none());
        let arrival = bench.switch.arrive(bench.start + half).unwrap();
        assert_eq!((arrival.device, arrival.packet.len()), (CORE, 100));
        assert_eq!(bench.switch.next_due(), None);
    }

    #[test]
    fn access_links_queue_packets_and_drop_those_beyond_the_queue() {
        // At 2.5 MB/s, a packet of 1,000 bytes takes 400 µs, so a queue of 50 ms holds 125 packets.
        for (device, packet) in [(3, to_site(1000)), (CORE, to_agent(1000))] {
            let mut bench = bench(|_| {});
            (0..200).for_each(|_| bench.switch.enter(bench.start, device, &packet));
            let arrivals = bench.arrivals();
            let wanted: Vec<Duration> = (0..arrivals.len())
                .map(|n| bench.half() + Duration::from_micros(400) * u32::try_from(n).unwrap())
                .collect();
            let off = arrivals.iter().zip(&wanted).map(|(seen, wanted)| seen.abs_diff(*wanted)).max().unwrap();
            assert!(off < Duration::from_micros(1), "{arrivals:?}");
            assert!((125..=126).contains(&arrivals.len()), "{}", arrivals.len());
            let lost = bench.traffic.queue_full.load(Ordering::Relaxed);
            assert_eq!(usize::try_from(lost).unwrap(), 200 - arrivals.len());
        }
    }

    #[test]
    fn the_scenarios_share_of_packets_is_dropped() {
        let mut bench = bench(|scenario| scenario.paths[2][5].loss = 0.1);
        for n in 0..5000 {
            bench.switch.enter(bench.start + Duration::from_millis(n), 3, &to_site(40));
        }
        let arrived = bench.arrivals().len();
        assert!((4400..4600).contains(&arrived), "{arrived}");
        assert_eq!(bench.traffic.lost.load(Ordering::Relaxed), 5000 - u64::try_from(arrived).unwrap());
    }

    #[test]
    fn jitter_delays_answers_without_reordering() {
        let mut bench = bench(|scenario| scenario.jitter_ms = 10.0);
        let mut sent = Vec::new();
        for n in 0..100 {
            bench.switch.enter(bench.start + Duration::from_millis(n), CORE, &to_agent(40));
            sent.push(Duration::from_millis(n));
        }
        let half = bench.half();
        let extra: Vec<Duration> = bench.arrivals().iter().zip(sent).map(|(seen, sent)| *seen - sent - half).collect();
        assert_eq!(extra.len(), 100);
        assert!(extra.iter().all(|extra| *extra <= Duration::from_millis(11)), "{extra:?}");
        assert!(extra.iter().any(|extra| *extra >= Duration::from_millis(5)), "{extra:?}");
        bench.switch.enter(bench.start + Duration::from_secs(1), 3, &to_site(40));
        assert_eq!(bench.arrivals(), [Duration::from_secs(1) + half]);
    }

    #[test]
    fn cuts_hold_in_their_direction_and_healing_restores_exactly() {
        let second = Duration::from_secs(1);
        for (cut, there, back) in
            [(CutDirection::Both, 0, 0), (CutDirection::Towards, 1, 0), (CutDirection::From, 0, 1)]
        {
            let mut bench = bench(|_| {});
            let arrives = |bench: &mut TestSwitch, at: u32| {
                [(3, to_site(40)), (CORE, to_agent(40))].map(|(device, packet)| {
                    bench.switch.enter(bench.start + second * at, device, &packet);
                    let arrivals = bench.arrivals();
                    assert!(arrivals.iter().all(|seen| *seen == second * at + bench.half()), "{arrivals:?}");
                    arrivals.len()
                })
            };
            bench.cuts.cut(2, cut);
            assert_eq!(arrives(&mut bench, 1), [there, back], "{cut:?}");
            bench.cuts.heal(2);
            assert_eq!(arrives(&mut bench, 2), [1, 1], "{cut:?}");
        }
    }

    #[test]
    fn a_cut_drops_packets_in_transit_to_the_agent() {
        let mut bench = bench(|_| {});
        bench.switch.enter(bench.start, CORE, &to_agent(40));
        bench.cuts.cut(2, CutDirection::Both);
        assert_eq!(bench.arrivals().len(), 0);
        assert_eq!(bench.traffic.cut.load(Ordering::Relaxed), 1);
    }
}
