//! The addresses of a lab, and the lane (range of addresses) that a lab reserves so that several
//! labs can run at the same time.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::Arc;

use anyhow::Context;

/// Number of hosts per third octet of an address. The fourth octets are 1 to 250.
const HOSTS_PER_OCTET: usize = 250;
/// Number of lanes. Each lab uses the addresses of one lane, so that several labs can run at the
/// same time.
pub const LANES: u8 = 24;
/// A lab reserves a lane (a range of addresses) by binding this port at the name server's address.
const LANE_PORT: u16 = 5299;
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

    /// Whether this is the lane of the tun grade, which delays packets instead of responses.
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

/// A lane that no other lab uses until the last clone is dropped.
#[derive(Debug, Clone)]
pub(super) struct ReservedLane {
    pub(super) lane: Lane,
    _socket: Arc<UdpSocket>,
}

impl ReservedLane {
    pub(super) fn take() -> anyhow::Result<Self> {
        let bind = |lane: Lane| {
            let socket = UdpSocket::bind((lane.names(), LANE_PORT))?;
            anyhow::Ok(Self { lane, _socket: Arc::new(socket) })
        };
        let lanes = (0..LANES).filter_map(Lane::new);
        first_free(lanes.map(bind)).with_context(|| format!("port {LANE_PORT} is taken on every lane of 127.x.0.1"))
    }
}

/// The first success, or the last error if nothing succeeds.
pub(super) fn first_free<T>(tried: impl Iterator<Item = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut last = anyhow::anyhow!("there is no candidate");
    for result in tried {
        match result {
            Ok(found) => return Ok(found),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
