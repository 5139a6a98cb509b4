//! Where probers see a site, and whose turn it waits for, as `landfall sites show` prints them.

use landfall_proto::v1::{SiteOrder, SiteSighting};
use serde::Serialize;

/// Where a prober sees the site, beside what its measurement says.
#[derive(Debug, Serialize)]
pub(super) struct Sighting {
    prober: String,
    address: String,
    postponed: u32,
    requests: u64,
}

/// The open order that the site waits for.
#[derive(Debug, Serialize)]
pub(super) struct Order {
    prober: String,
    /// Empty when it only asks for the address.
    address: String,
    /// Empty when it is this one.
    site: String,
}

impl From<SiteSighting> for Sighting {
    fn from(SiteSighting { prober, address, postponed, requests }: SiteSighting) -> Self {
        Self { prober, address, postponed, requests }
    }
}

impl From<SiteOrder> for Order {
    fn from(SiteOrder { prober, address, site }: SiteOrder) -> Self {
        Self { prober, address, site }
    }
}

impl Order {
    /// For a person.
    pub(super) fn sentence(&self) -> String {
        let Self { prober, address, site } = self;
        match (address.as_str(), site.as_str()) {
            ("", _) => format!("{prober}, which finds out its address"),
            (address, "") => format!("{prober}, which has the turn at {address}"),
            (address, site) => format!("its turn at {address}, where {prober} measures {site}"),
        }
    }
}

impl Sighting {
    /// For a person.
    pub(super) fn sentence(&self) -> String {
        let mut text = format!("{} sees it at {}", self.prober, self.address);
        if self.postponed > 0 {
            text.push_str(&format!("; {} orders in a row postponed", self.postponed));
        }
        if self.requests > 0 {
            text.push_str(&format!("; {} more requests, not counted above", self.requests));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_says_what_it_waits_for() {
        let order = |address: &str, site: &str| {
            Order { prober: "a1".to_owned(), address: address.to_owned(), site: site.to_owned() }.sentence()
        };
        assert_eq!(order("", ""), "a1, which finds out its address");
        assert_eq!(order("192.0.2.1", ""), "a1, which has the turn at 192.0.2.1");
        assert_eq!(order("192.0.2.1", "b.cn"), "its turn at 192.0.2.1, where a1 measures b.cn");
    }

    #[test]
    fn a_sighting_says_what_no_measurement_says() {
        let sighting = |postponed, requests| {
            let (prober, address) = ("a1".to_owned(), "192.0.2.1".to_owned());
            Sighting { prober, address, postponed, requests }.sentence()
        };
        assert_eq!(sighting(0, 0), "a1 sees it at 192.0.2.1");
        assert_eq!(
            sighting(2, 3),
            "a1 sees it at 192.0.2.1; 2 orders in a row postponed; 3 more requests, not counted above"
        );
    }
}
