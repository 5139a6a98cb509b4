//! The quota of a batch: the maximum number of bytes that one agent fetches for it within 24 hours.
//! The budget of an address: the maximum number of concurrent crawls of all sites at the address.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::model::OutOfBounds;

/// Maximum quota: the greatest signed number of 64 bits, because numbers on the wire and sums in
/// the store are signed.
const MOST_BYTES: u64 = i64::MAX.unsigned_abs();

/// Checks the bounds of a quota.
pub(super) fn check(quota: u64) -> Result<(), OutOfBounds> {
    if (1..=MOST_BYTES).contains(&quota) {
        return Ok(());
    }
    Err(OutOfBounds { field: "bytes_per_day", problem: format!("must be 1 to {MOST_BYTES}") })
}

/// The bytes that an agent fetched for a batch within 24 hours, and the bytes that its unfinished
/// tasks are expected to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaUse {
    pub fetched: u64,
    /// Number of the agent's unfinished tasks of the batch.
    pub under_way: u32,
    /// Expected bytes of each unfinished task.
    pub expected: u64,
}

impl QuotaUse {
    /// Whether the agent may get no further task under this quota. The expected bytes of unfinished
    /// tasks count too, so that a quota is exceeded by less than the expected bytes of one site.
    pub fn uses_up(self, quota: u64) -> bool {
        self.all() >= quota
    }

    /// The number of further tasks that the agent may get under this quota, at most `most`.
    pub fn room(self, quota: u64, most: u64) -> u64 {
        quota.saturating_sub(self.all()).div_ceil(self.expected.max(1)).min(most)
    }

    fn all(self) -> u64 {
        self.fetched.saturating_add(self.expected.saturating_mul(self.under_way.into()))
    }
}

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
    fn a_quota_counts_what_is_under_way_and_is_exceeded_by_less_than_a_site() {
        let spent = |fetched, under_way| QuotaUse { fetched, under_way, expected: 40 };
        for (spending, room) in
            [(spent(0, 0), 3), (spent(0, 2), 1), (spent(99, 0), 1), (spent(100, 0), 0), (spent(21, 2), 0)]
        {
            assert_eq!(spending.uses_up(100), room == 0, "{spending:?}");
            assert_eq!(spending.room(100, 1000), room, "{spending:?}");
        }
        assert_eq!(spent(0, 0).room(100, 2), 2);
        // Even a small quota allows one site. Huge sizes do not overflow.
        let huge = QuotaUse { fetched: 0, under_way: 0, expected: u64::MAX };
        assert!(!huge.uses_up(100));
        assert!(QuotaUse { under_way: u32::MAX, ..huge }.uses_up(100));
    }

    #[test]
    fn an_address_permits_more_crawls_the_more_sites_it_has_to_a_cap() {
        let borne: Vec<u32> = [0, 1, 2, 4, 5, 9, 50, 64, 65, u32::MAX].map(|sites| permitted_crawls(sites, 8)).to_vec();
        assert_eq!(borne, [1, 1, 2, 2, 3, 3, 8, 8, 8, 8]);
        assert_eq!(permitted_crawls(100, 0), 1);
    }
}
