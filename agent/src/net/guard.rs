//! Decides to which addresses the prober and the crawler may connect.
//!
//! A site's name, an IP literal or a redirect may point anywhere, including the agent's own network
//! and the metadata service of its cloud. So every address is vetted after the name has been
//! resolved and before a connection is made. The connection is made to the vetted address; the name
//! is not resolved a second time.
//!
//! Only public unicast addresses pass. The operator can configure two exceptions: allowed networks
//! (`--allow-net`), and networks in which the agent may measure other agents' beacons. A malicious
//! agent may report any address as its beacon, so an address does not pass just because an agent
//! reports it. Link-local, multicast and unspecified addresses and the metadata services of clouds
//! never pass as a beacon.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::net::dns::{DnsError, Resolver};

/// The warning about a network that the operator allows. The agent logs the warning for each such
/// network before it makes any connection.
pub const OPEN: &str = "THE GUARD IS OPEN: this network may be probed and crawled though it is not public";

pub fn parse_network(text: &str) -> Result<IpNet, String> {
    text.parse().map_err(|_| {
        let (address, prefix) = text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        match (address.parse::<IpAddr>(), prefix) {
            (Err(_), _) => format!("'{text}' is not ADDRESS/PREFIX, such as 10.0.0.0/8"),
            (Ok(address), None) => {
                format!("'{text}' has no prefix: write {} for this single address", IpNet::from(address))
            }
            (Ok(address), Some(_)) => {
                let (longest, of) = if address.is_ipv4() { (32, "IPv4") } else { (128, "IPv6") };
                format!("'{text}': a prefix is 0 to {longest} ({of})")
            }
        }
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the guard refuses {addr}: {why}, and neither allow_net in agent.toml nor --allow-net contains it")]
pub struct RefusedAddress {
    pub addr: IpAddr,
    pub why: &'static str,
}

impl RefusedAddress {
    /// The error message about another agent's beacon. The message also says how the operator can
    /// allow the address.
    pub fn with_remedy(&self) -> String {
        let Self { addr, why } = *self;
        if NEVER_A_BEACON.contains(&why) {
            return self.to_string();
        }
        let net = network(addr);
        format!(
            "the guard refuses {addr}: {why}; add allow_net = [\"{net}\"] under [beacon] in agent.toml and start the agent again"
        )
    }
}

/// The refused network that contains an address, or else a network of only this address.
fn network(addr: IpAddr) -> IpNet {
    let listed = match addr {
        IpAddr::V4(addr) => V4.iter().find(|(net, _)| net.contains(&addr)).map(|(net, _)| IpNet::V4(*net)),
        IpAddr::V6(addr) => V6.iter().find(|(net, _)| net.contains(&addr)).map(|(net, _)| IpNet::V6(*net)),
    };
    listed.unwrap_or_else(|| addr.into())
}

#[derive(Debug, thiserror::Error)]
pub enum ResolveError {
    #[error(transparent)]
    Dns(DnsError),
    /// The name was resolved, but no address passes. Contains one of the refused addresses.
    #[error(transparent)]
    Refused(RefusedAddress),
}

/// Vets addresses. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Guard {
    allowed: Arc<[IpNet]>,
    beacons: Arc<[IpNet]>,
    for_beacon: bool,
}

impl Guard {
    /// Makes a guard that lets public addresses and addresses in `allow_net` pass.
    pub fn new(allow_net: Vec<IpNet>) -> Self {
        Self { allowed: allow_net.into(), beacons: Arc::default(), for_beacon: false }
    }

    /// Adds networks in which the beacons of other agents pass.
    #[must_use]
    pub fn with_beacons(self, networks: Vec<IpNet>) -> Self {
        Self { beacons: networks.into(), ..self }
    }

    /// The guard to use for connections to another agent's beacon.
    #[must_use]
    pub fn for_beacon(&self) -> Self {
        Self { for_beacon: true, ..self.clone() }
    }

    pub fn vet(&self, addr: IpAddr) -> Result<(), RefusedAddress> {
        if self.allowed.iter().any(|net| net.contains(&addr)) {
            return Ok(());
        }
        let refused = match addr {
            IpAddr::V4(addr) => V4.iter().find(|(net, _)| net.contains(&addr)).map(|(_, why)| *why),
            IpAddr::V6(addr) => refuse_v6(addr),
        };
        match refused {
            Some(why) if self.is_beacon(addr) && !NEVER_A_BEACON.contains(&why) => Ok(()),
            Some(why) => Err(RefusedAddress { addr, why }),
            None => Ok(()),
        }
    }

    /// Whether the guard is for a beacon, and the address is in a network for beacons.
    fn is_beacon(&self, addr: IpAddr) -> bool {
        self.for_beacon && self.beacons.iter().any(|net| net.contains(&addr))
    }

    /// Resolves a host and returns the addresses that pass.
    pub async fn resolve(&self, resolver: &Resolver, host: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let addresses = resolver.resolve(host).await.map_err(ResolveError::Dns)?;
        let mut vetted = Vec::with_capacity(addresses.len());
        let mut refused = None;
        for addr in addresses {
            match self.vet(addr) {
                Ok(()) => vetted.push(addr),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(refused) if vetted.is_empty() => Err(ResolveError::Refused(refused)),
            _ => Ok(vetted),
        }
    }
}

const PRIVATE: &str = "private";
const LOOPBACK: &str = "loopback";
const SHARED: &str = "carrier-grade NAT";
const UNIQUE_LOCAL: &str = "unique local";
const DOCUMENTATION: &str = "documentation";
const BENCHMARKING: &str = "benchmarking";
const LINK_LOCAL: &str = "link-local, where clouds keep their metadata";
const METADATA: &str = "a cloud's metadata service";
const MULTICAST: &str = "multicast";
const RESERVED: &str = "reserved";
const UNSPECIFIED: &str = "unspecified";
const TUNNEL: &str = "a tunnel that may hide a private IPv4 address";

/// Kinds of addresses that never pass as a beacon, whatever networks the operator allows.
const NEVER_A_BEACON: [&str; 4] = [LINK_LOCAL, METADATA, MULTICAST, UNSPECIFIED];

/// The refused IPv4 networks: those of the IANA special-purpose registry, and two addresses of
/// cloud providers (Alibaba's metadata service, and Azure's host). These two addresses come first,
/// because the first matching entry gives the reason.
const V4: [(Ipv4Net, &str); 17] = [
    (Ipv4Net::new_assert(Ipv4Addr::new(100, 100, 100, 200), 32), METADATA),
    (Ipv4Net::new_assert(Ipv4Addr::new(168, 63, 129, 16), 32), METADATA),
    (v4(0, 0, 0, 8), UNSPECIFIED),
    (v4(10, 0, 0, 8), PRIVATE),
    (v4(100, 64, 0, 10), SHARED),
    (v4(127, 0, 0, 8), LOOPBACK),
    (v4(169, 254, 0, 16), LINK_LOCAL),
    (v4(172, 16, 0, 12), PRIVATE),
    (v4(192, 0, 0, 24), RESERVED),
    (v4(192, 0, 2, 24), DOCUMENTATION),
    (v4(192, 88, 99, 24), TUNNEL),
    (v4(192, 168, 0, 16), PRIVATE),
    (v4(198, 18, 0, 15), BENCHMARKING),
    (v4(198, 51, 100, 24), DOCUMENTATION),
    (v4(203, 0, 113, 24), DOCUMENTATION),
    (v4(224, 0, 0, 4), MULTICAST),
    (v4(240, 0, 0, 4), RESERVED),
];

/// The only global unicast IPv6 network. All addresses outside it are refused.
const GLOBAL_UNICAST: Ipv6Net = v6(0x2000, 0, 3);

/// The refused IPv6 networks. The first matching entry gives the reason.
const V6: [(Ipv6Net, &str); 15] = [
    // Amazon's and Google's metadata services.
    (Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128), METADATA),
    (Ipv6Net::new_assert(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128), METADATA),
    (Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 128), UNSPECIFIED),
    (Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128), LOOPBACK),
    (Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96), "an IPv4 address in an IPv6 one"),
    (Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 96), "an IPv4 address in an IPv6 one"),
    (v6(0x64, 0xff9b, 32), TUNNEL),
    (v6(0x2001, 0x2, 48), BENCHMARKING),
    (v6(0x2001, 0xdb8, 32), DOCUMENTATION),
    (v6(0x3fff, 0, 20), DOCUMENTATION),
    (v6(0x2001, 0, 23), TUNNEL),
    (v6(0x2002, 0, 16), TUNNEL),
    (v6(0xfc00, 0, 7), UNIQUE_LOCAL),
    (v6(0xfe80, 0, 10), LINK_LOCAL),
    (v6(0xff00, 0, 8), MULTICAST),
];

fn refuse_v6(addr: Ipv6Addr) -> Option<&'static str> {
    let named = V6.iter().find(|(net, _)| net.contains(&addr)).map(|(_, why)| *why);
    named.or((!GLOBAL_UNICAST.contains(&addr)).then_some(RESERVED))
}

const fn v4(a: u8, b: u8, c: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, 0), prefix)
}

const fn v6(a: u16, b: u16, prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(a, b, 0, 0, 0, 0, 0, 0), prefix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_network_is_explained() {
        assert!(parse_network("127.0.1.0/24").is_ok() && parse_network("2001:db8::/128").is_ok());
        for (text, message) in [
            ("127.0.1.0/33", "'127.0.1.0/33': a prefix is 0 to 32 (IPv4)"),
            ("127.0.1.0/x", "'127.0.1.0/x': a prefix is 0 to 32 (IPv4)"),
            ("2001:db8::/129", "'2001:db8::/129': a prefix is 0 to 128 (IPv6)"),
            ("127.0.1.7", "'127.0.1.7' has no prefix: write 127.0.1.7/32 for this single address"),
            ("lan/8", "'lan/8' is not ADDRESS/PREFIX, such as 10.0.0.0/8"),
            ("", "'' is not ADDRESS/PREFIX, such as 10.0.0.0/8"),
        ] {
            assert_eq!(parse_network(text), Err(message.to_owned()));
        }
    }

    fn why(addr: &str) -> Option<&'static str> {
        Guard::new(Vec::new()).vet(addr.parse().unwrap()).err().map(|refused| refused.why)
    }

    #[test]
    fn only_public_addresses_pass() {
        for (expected, addresses) in [
            (UNSPECIFIED, "0.0.0.0 ::"),
            (PRIVATE, "10.1.2.3 172.16.0.1 172.31.255.255 192.168.1.1"),
            (SHARED, "100.64.0.1 100.127.255.255"),
            (LOOPBACK, "127.0.0.1 127.2.3.4 ::1"),
            (LINK_LOCAL, "169.254.169.254 fe80::1"),
            (RESERVED, "192.0.0.8 255.255.255.255 100::1 5f00::1 fec0::1"),
            (DOCUMENTATION, "192.0.2.1 198.51.100.1 203.0.113.1 2001:db8::1 3fff::1"),
            (BENCHMARKING, "198.18.0.1 198.19.255.255 2001:2::1"),
            (MULTICAST, "224.0.0.1 239.255.255.250 ff02::1"),
            ("an IPv4 address in an IPv6 one", "::ffff:127.0.0.1 ::ffff:8.8.8.8 ::7f00:1"),
            (TUNNEL, "64:ff9b::7f00:1 64:ff9b:1::1 2001::1 2002:7f00:1::1"),
            (UNIQUE_LOCAL, "fc00::1 fd20:ce::255"),
            (METADATA, "fd00:ec2::254 fd20:ce::254 100.100.100.200 168.63.129.16"),
        ] {
            addresses.split(' ').for_each(|addr| assert_eq!(why(addr), Some(expected), "{addr}"));
        }
        let public = "8.8.8.8 100.63.255.255 100.128.0.1 172.32.0.1 198.20.0.1 2606:4700::1 2400::1";
        public.split(' ').for_each(|addr| assert_eq!(why(addr), None, "{addr}"));
    }

    #[test]
    fn an_allowed_network_passes_and_its_neighbour_does_not() {
        let guard = Guard::new(vec!["127.2.0.0/16".parse().unwrap()]);
        assert!(guard.vet("127.2.3.4".parse().unwrap()).is_ok());
        assert!(guard.vet("127.3.0.1".parse().unwrap()).is_err());
        assert!(guard.vet("::ffff:127.2.3.4".parse().unwrap()).is_err());
    }

    #[test]
    fn a_private_beacon_passes_only_in_a_configured_network() {
        let vet = |guard: &Guard, addr: &str| guard.vet(addr.parse().unwrap()).is_ok();
        for addr in ["10.0.0.5", "127.0.0.1", "192.168.0.1", "100.64.0.1", "fc00::1"] {
            assert!(!vet(&Guard::new(Vec::new()).for_beacon(), addr), "{addr}: whoever advertises it");
        }
        let nets = ["10.20.0.0/16", "::/0", "169.254.0.0/16", "100.100.0.0/16"].map(|net| net.parse().unwrap());
        let guard = Guard::new(Vec::new()).with_beacons(nets.to_vec());
        assert!(vet(&guard.for_beacon(), "10.20.0.7") && vet(&guard.for_beacon(), "fc00::1"));
        assert!(!vet(&guard.for_beacon(), "10.21.0.7"));
        assert!(!vet(&guard, "10.20.0.7"), "no site is there");
        for metadata in ["169.254.169.254", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254", "fe80::1"] {
            assert!(!vet(&guard.for_beacon(), metadata), "{metadata}");
        }
    }

    #[test]
    fn a_refused_beacon_names_the_network_to_allow_except_for_metadata_services() {
        let message = |addr: &str| Guard::new(Vec::new()).vet(addr.parse().unwrap()).unwrap_err().with_remedy();
        for (addr, net) in [("198.18.0.5", "198.18.0.0/15"), ("10.0.0.5", "10.0.0.0/8"), ("5f00::1", "5f00::1/128")] {
            let (message, allowed) =
                (message(addr), format!("add allow_net = [\"{net}\"] under [beacon] in agent.toml"));
            assert!(message.contains(addr) && message.contains(&allowed), "{message}");
            let guard = Guard::new(Vec::new()).with_beacons(vec![net.parse().unwrap()]);
            assert!(guard.for_beacon().vet(addr.parse().unwrap()).is_ok());
        }
        let refused = message("169.254.169.254");
        assert!(
            !refused.contains("add") && refused.contains("neither allow_net in agent.toml nor --allow-net"),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn literals_are_vetted_whatever_their_spelling() {
        let guard = Guard::new(Vec::new());
        let resolver = Resolver::new(Some("127.0.0.1:9".parse().unwrap())).unwrap();
        for host in ["127.0.0.1", "0x7f.1", "2130706433", "0177.0.0.1", "[::1]", "::1", "[::ffff:7f00:1]"] {
            let result = guard.resolve(&resolver, host).await;
            assert!(matches!(result, Err(ResolveError::Refused(_))), "{host}: {result:?}");
        }
    }
}
