//! Holds the facts about a task's site, and converts them to the input of a strategy.

use std::net::IpAddr;
use std::time::Duration;

use crate::model::geo::Position;

use super::schedule::crawl_duration::Work;

#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Site<'a> {
    pub host: &'a str,
    /// The site's address, as resolved by a prober.
    pub address: Option<IpAddr>,
    /// The site's position, from the site list or a database of IP addresses.
    pub position: Option<Position>,
    /// The size of the crawl; `None` if unknown.
    pub work: Option<Work>,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct SiteFacts {
    pub host: String,
    /// The site's address, as resolved by a prober.
    pub address: Option<IpAddr>,
    pub position: Option<Position>,
    /// Pages and bytes of the last crawl; `None` if no crawl has ended.
    pub size: Option<(u32, u64)>,
    /// Number of pages fetched so far, by a running crawl or by a crawl that was handed back.
    pub fetched: u32,
    /// The batch's request interval.
    pub interval: Duration,
}

impl SiteFacts {
    /// Converts the facts to the input of a strategy, with the remaining work. A site of unknown
    /// size is assumed to have the `usual` size.
    pub fn site(&self, usual: Option<(u32, u64)>) -> Site<'_> {
        let whole = self.whole(usual);
        let work = if self.fetched == 0 { whole } else { whole.left(self.fetched, self.size.is_some()) };
        Site { host: &self.host, address: self.address, position: self.position, work: Some(work) }
    }

    /// All work of the site, including fetched pages. `usual` is the size assumed for a site of
    /// unknown size.
    pub fn whole(&self, usual: Option<(u32, u64)>) -> Work {
        let (pages, bytes) = self.size.or(usual).unwrap_or((Work::default().pages, Work::default().bytes));
        Work { pages, bytes, interval: self.interval }
    }
}
