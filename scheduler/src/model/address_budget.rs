//! The budget of an address: the maximum number of concurrent crawls of all sites at the address.

use std::net::IpAddr;

use ipnet::IpNet;

/// The network whose sites share a budget: a single IPv4 address, or an IPv6 /64 network, because a
/// /64 network usually belongs to one customer.
pub fn shared_network(address: IpAddr) -> IpNet {
    let address = address.to_canonical();
    let bits = if address.is_ipv4() { 32 } else { 64 };
    IpNet::new(address, bits).map_or_else(|_| address.into(), |network| network.trunc())
}

/// Maximum concurrent crawls at an address with `sites` sites: the square root of `sites`, rounded
/// up, at least 1 and at most `cap`. The root is used because a host with more sites has more
/// capacity, but not proportionally more.
pub fn permitted_crawls(sites: u32, cap: u32) -> u32 {
    let root = sites.isqrt();
    let up = if root * root < sites { root + 1 } else { root };
    up.clamp(1, cap.max(1))
}

/// Maximum number of sites to count at one address, because further sites do not raise the budget.
pub fn most_counted(cap: u32) -> i64 {
    i64::from(cap) * i64::from(cap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_permits_more_crawls_the_more_sites_it_has_to_a_cap() {
        let borne: Vec<u32> = [0, 1, 2, 4, 5, 9, 50, 64, 65, u32::MAX].map(|sites| permitted_crawls(sites, 8)).to_vec();
        assert_eq!(borne, [1, 1, 2, 2, 3, 3, 8, 8, 8, 8]);
        assert_eq!(permitted_crawls(100, 0), 1);
    }
}
