//! Defines the crawl residual, and the weight that it keeps with age.

use std::net::IpAddr;
use std::time::Duration;

use crate::model::{AgentId, Rtt, SiteId};

/// The spread of a single crawl's round trip, as a standard deviation of its logarithm. The median
/// round trips of repeated crawls differ by about ten per cent.
pub const CRAWL_SPREAD: f64 = 0.1;
/// Age at which a crawl's weight has halved: a week, because routes change over weeks.
const HALF_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// A network prefix: 24 bits of an IPv4 address, or 48 bits of an IPv6 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Prefix(u64);

impl From<IpAddr> for Prefix {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self(u64::from(v4.to_bits() >> 8)),
            IpAddr::V6(v6) => Self(1 << 63 | u64::try_from(v6.to_bits() >> 80).unwrap_or(0)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CrawlResidual {
    pub agent: AgentId,
    pub site: SiteId,
    /// The site's network; `None` if its address is unknown.
    pub network: Option<Prefix>,
    /// The round trip known before the crawl.
    pub known: Rtt,
    /// Whether probes measured `known`; if not, the map predicted it.
    pub probed: bool,
    /// Whether the agent got the site because its predicted round trip was short. If so, the
    /// residual does not count towards the agent's correction, because the shortest of many
    /// predictions is usually too short.
    pub preferred: bool,
    pub crawled: Rtt,
    /// The weight: 1 for a crawl now, less with age (see [`weight`]).
    pub weight: f64,
}

pub fn weight(age: Duration) -> f64 {
    0.5_f64.powf(age.as_secs_f64() / HALF_LIFE.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_half_life_a_crawl_weighs_half() {
        assert!((weight(HALF_LIFE) - 0.5).abs() < 1e-9);
    }
}
