//! Finds the path of a packet: the packet's header determines the destination device and the link
//! of the scenario. Also cuts agents' links, while packets are in transit, and heals them.
//!
//! A measured matrix is not symmetric: agent a's round trip to agent b's beacon is the value that
//! agent a measured. So between two agents, the link depends on which agent opened the connection.
//! In TCP packets, the port identifies this agent; in ICMP echoes, the type does.
//!
//! A cut drops packets silently, like a broken cable. The router checks for cuts when it receives a
//! packet, and again when it delivers the packet.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::world::addresses::Lane;
use crate::world::scenario::{Link, Scenario};

/// The index of the device in the servers' namespace. Agent n's device has the index n + 1.
pub(super) const CORE: usize = 0;
const ICMP: u8 = 1;
const TCP: u8 = 6;
/// The type of an ICMP echo reply.
const ECHO_REPLY: u8 = 0;

#[derive(Debug)]
pub(super) struct PathTable {
    lane: Lane,
    beacon_port: u16,
    agents: usize,
    machines: usize,
    /// One-way links from each agent (row) to its peers (columns). The peers are agents, machines,
    /// the name server and the schedulers, in this order.
    links: Vec<Vec<OneWayLink>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct OneWayLink {
    delay: Duration,
    loss: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PacketPath {
    /// The device that delivers the packet.
    pub(super) device: usize,
    /// Index of the directed path, below [`PathTable::keys`]. Packets with the same key never
    /// overtake each other.
    pub(super) key: usize,
    pub(super) delay: Duration,
    /// The probability that the packet is lost, 0 to 1.
    pub(super) loss: f64,
    /// The agent that sent the packet; `None` if a server sent it.
    pub(super) sender: Option<usize>,
    /// The agent that receives the packet; `None` if a server receives it.
    pub(super) receiver: Option<usize>,
}

impl PathTable {
    /// The one-way links take half the round trip of the scenario. Scenarios have no location for
    /// the schedulers, so the location of the first agent is used. The name server has no delay,
    /// because name resolution is not part of a round trip.
    pub(super) fn new(scenario: &Scenario, lane: Lane, beacon_port: u16) -> Self {
        let (agents, machines) = (scenario.agents.len(), scenario.machines());
        let half = |link: Link| OneWayLink { delay: link.rtt() / 2, loss: link.loss };
        let near = OneWayLink { delay: Duration::ZERO, loss: 0.0 };
        let row = |agent: usize| {
            let others = scenario.mesh[agent].iter().copied().map(half);
            let sites = (0..machines).map(|machine| {
                let site = scenario.sites_of(machine).next();
                site.map_or(near, |site| half(scenario.paths[agent][site]))
            });
            others.chain(sites).chain([near, half(scenario.mesh[0][agent])]).collect()
        };
        Self { lane, beacon_port, agents, machines, links: (0..agents).map(row).collect() }
    }

    /// Number of directed paths.
    pub(super) fn keys(&self) -> usize {
        self.agents * self.peers() * 2
    }

    /// The path of a packet that came from `device`; `None` if the packet is invalid: it is not
    /// IPv4, its source address does not belong to the device, or its destination is unknown.
    pub(super) fn path_of(&self, device: usize, packet: &[u8]) -> Option<PacketPath> {
        let header = Header::read(packet)?;
        let (source, target) = (self.peer(header.source)?, self.peer(header.target)?);
        let (sender, receiver) = (self.agent(source), self.agent(target));
        if device != sender.map_or(CORE, |agent| agent + 1) {
            return None;
        }
        let (half, key) = match (sender, receiver) {
            (Some(one), Some(other)) => {
                let half =
                    if header.is_answer(self.beacon_port) { self.links[other][one] } else { self.links[one][other] };
                (half, one * self.peers() + other)
            }
            (Some(agent), None) => (self.links[agent][target], agent * self.peers() + target),
            (None, Some(agent)) => (self.links[agent][source], agent * self.peers() + source),
            (None, None) => return None,
        };
        let key = key * 2 + usize::from(sender.is_none());
        let device = receiver.map_or(CORE, |agent| agent + 1);
        Some(PacketPath { device, key, delay: half.delay, loss: half.loss, sender, receiver })
    }

    fn peers(&self) -> usize {
        self.agents + self.machines + 2
    }

    /// The column of `links` for the owner of an address.
    fn peer(&self, address: Ipv4Addr) -> Option<usize> {
        let names = self.agents + self.machines;
        let agent = self.lane.agent_at(address.into(), self.agents);
        agent
            .or_else(|| self.lane.machine_at(address, self.machines).map(|machine| self.agents + machine))
            .or_else(|| (address == self.lane.names()).then_some(names))
            .or_else(|| (address == self.lane.schedulers()).then_some(names + 1))
    }

    fn agent(&self, peer: usize) -> Option<usize> {
        (peer < self.agents).then_some(peer)
    }
}

#[derive(Debug)]
struct Header<'a> {
    source: Ipv4Addr,
    target: Ipv4Addr,
    protocol: u8,
    /// The bytes after the header.
    rest: &'a [u8],
}

impl<'a> Header<'a> {
    fn read(packet: &'a [u8]) -> Option<Self> {
        let first = *packet.first()?;
        let length = usize::from(first & 0x0f) * 4;
        if first >> 4 != 4 || length < 20 {
            return None;
        }
        let address = |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?));
        Some(Self { source: address(12)?, target: address(16)?, protocol: packet[9], rest: packet.get(length..)? })
    }

    /// Whether the packet is a response, which goes to the host that opened the connection or sent
    /// the echo request.
    fn is_answer(&self, beacon_port: u16) -> bool {
        match self.protocol {
            ICMP => self.rest.first() == Some(&ECHO_REPLY),
            TCP => self.rest.get(..2) == Some(&beacon_port.to_be_bytes()),
            _ => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CutDirection {
    /// All packets to and from the agent are lost.
    Both,
    /// Packets to the agent are lost.
    Towards,
    /// Packets from the agent are lost.
    From,
}

impl CutDirection {
    pub(super) fn loses_towards(self) -> bool {
        matches!(self, Self::Both | Self::Towards)
    }

    pub(super) fn loses_from(self) -> bool {
        matches!(self, Self::Both | Self::From)
    }
}

/// The cuts of all agents' links; initially none. Clones share the state.
#[derive(Debug, Clone)]
pub struct LinkCuts {
    /// The cut of each link, by agent index.
    links: Arc<[Mutex<Option<CutDirection>>]>,
}

impl LinkCuts {
    /// One link for each agent; no link is cut.
    pub(super) fn none(agents: usize) -> Self {
        Self { links: (0..agents).map(|_| Mutex::default()).collect() }
    }

    /// Cuts the link of an agent. A new cut replaces an earlier one.
    ///
    /// # Panics
    /// Panics if the index is invalid.
    pub fn cut(&self, agent: usize, cut: CutDirection) {
        self.set(agent, Some(cut));
    }

    /// # Panics
    /// Panics if the index is invalid.
    pub fn heal(&self, agent: usize) {
        self.set(agent, None);
    }

    /// The cut of an agent's link; `None` if the link is not cut.
    ///
    /// # Panics
    /// Panics if the index is invalid.
    pub(super) fn of(&self, agent: usize) -> Option<CutDirection> {
        *self.links[agent].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, agent: usize, cut: Option<CutDirection>) {
        *self.links[agent].lock().unwrap_or_else(PoisonError::into_inner) = cut;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::scenario::{Layout, SMALL};

    const BEACON: u16 = 7180;

    fn paths() -> (Scenario, PathTable) {
        let mut scenario = Layout::parse(SMALL, "small.toml").unwrap().scenario(None, None).unwrap();
        scenario.mesh[1][2].rtt_ms = 44.0;
        scenario.mesh[2][1].rtt_ms = 66.0;
        let paths = PathTable::new(&scenario, Lane::TUN, BEACON);
        (scenario, paths)
    }

    /// The first bytes of a packet: a header, and then two ports or an ICMP type.
    fn packet(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45; 20];
        packet[9] = protocol;
        packet[12..16].copy_from_slice(&from.octets());
        packet[16..20].copy_from_slice(&to.octets());
        packet.extend_from_slice(rest);
        packet
    }

    #[test]
    fn a_packet_takes_half_the_round_trip_each_way() {
        let (scenario, paths) = paths();
        let (agent, site) = (Lane::TUN.agent(3), Lane::TUN.site(7));
        let there = paths.path_of(4, &packet(agent, site, TCP, &[1, 2, 0, 80])).unwrap();
        let back = paths.path_of(CORE, &packet(site, agent, TCP, &[0, 80, 1, 2])).unwrap();
        let half = scenario.paths[3][7].rtt() / 2;
        assert_eq!((there.device, there.delay, there.sender, there.receiver), (CORE, half, Some(3), None));
        assert_eq!((back.device, back.delay, back.sender, back.receiver), (4, half, None, Some(3)));
        assert_ne!(there.key, back.key);
        assert!(there.key.max(back.key) < paths.keys());
        let names = paths.path_of(4, &packet(agent, Lane::TUN.names(), 17, &[1, 2, 0, 53])).unwrap();
        assert_eq!((names.delay, names.device), (Duration::ZERO, CORE));
        let scheduler = paths.path_of(4, &packet(agent, Lane::TUN.schedulers(), TCP, &[1, 2, 0, 80])).unwrap();
        assert_eq!(scheduler.delay, scenario.mesh[0][3].rtt() / 2);
    }

    #[test]
    fn between_agents_the_requesting_agents_round_trip_applies() {
        let (_, paths) = paths();
        let (one, two) = (Lane::TUN.agent(1), Lane::TUN.agent(2));
        let port = BEACON.to_be_bytes();
        let asked = packet(one, two, TCP, &[9, 9, port[0], port[1]]);
        let answered = packet(two, one, TCP, &[port[0], port[1], 9, 9]);
        let echoes = [packet(one, two, ICMP, &[8, 0]), packet(two, one, ICMP, &[ECHO_REPLY, 0])];
        for (device, packet) in [(2, &asked), (3, &answered), (2, &echoes[0]), (3, &echoes[1])] {
            assert_eq!(paths.path_of(device, packet).unwrap().delay, Duration::from_millis(22));
        }
        let asked_back = packet(two, one, TCP, &[9, 9, port[0], port[1]]);
        assert_eq!(paths.path_of(3, &asked_back).unwrap().delay, Duration::from_millis(33));
    }

    #[test]
    fn an_impossible_packet_has_no_path() {
        let (_, paths) = paths();
        let (agent, site) = (Lane::TUN.agent(0), Lane::TUN.site(0));
        let good = packet(agent, site, TCP, &[0; 4]);
        assert!(paths.path_of(1, &good).is_some());
        assert_eq!(paths.path_of(2, &good), None, "another agent's address");
        assert_eq!(paths.path_of(CORE, &packet(site, site, TCP, &[0; 4])), None);
        assert_eq!(paths.path_of(1, &packet(agent, Ipv4Addr::new(8, 8, 8, 8), TCP, &[0; 4])), None);
        assert_eq!(paths.path_of(1, &packet(agent, Lane::TUN.site(24), TCP, &[0; 4])), None);
        for rubbish in [&[][..], &[0x45], &good[..19], &[0x60; 40], &[0x41; 40]] {
            assert_eq!(paths.path_of(1, rubbish), None, "{rubbish:?}");
        }
    }
}
