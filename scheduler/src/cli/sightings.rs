//! Where probers see a site, and whose turn it waits for, as `landfall sites show` prints them.

use landfall_proto::v1::{SiteOrder, SiteSighting};

/// The open order that a site waits for, for a person.
pub(super) fn order(SiteOrder { prober, address, site }: &SiteOrder) -> String {
    match (address.as_str(), site.as_str()) {
        ("", _) => format!("{prober}, which finds out its address"),
        (address, "") => format!("{prober}, which has the turn at {address}"),
        (address, site) => format!("its turn at {address}, where {prober} measures {site}"),
    }
}

/// Where a prober sees a site, beside what its measurement says, for a person.
pub(super) fn sighting(SiteSighting { prober, address, postponed, requests }: &SiteSighting) -> String {
    let mut text = format!("{prober} sees it at {address}");
    if *postponed > 0 {
        text.push_str(&format!("; {postponed} orders in a row postponed"));
    }
    if *requests > 0 {
        text.push_str(&format!("; {requests} more requests, not counted above"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_says_what_it_waits_for() {
        let order = |address: &str, site: &str| {
            order(&SiteOrder { prober: "a1".to_owned(), address: address.to_owned(), site: site.to_owned() })
        };
        assert_eq!(order("", ""), "a1, which finds out its address");
        assert_eq!(order("192.0.2.1", ""), "a1, which has the turn at 192.0.2.1");
        assert_eq!(order("192.0.2.1", "b.cn"), "its turn at 192.0.2.1, where a1 measures b.cn");
    }

    #[test]
    fn a_sighting_says_what_no_measurement_says() {
        let sighting = |postponed, requests| {
            let (prober, address) = ("a1".to_owned(), "192.0.2.1".to_owned());
            sighting(&SiteSighting { prober, address, postponed, requests })
        };
        assert_eq!(sighting(0, 0), "a1 sees it at 192.0.2.1");
        assert_eq!(
            sighting(2, 3),
            "a1 sees it at 192.0.2.1; 2 orders in a row postponed; 3 more requests, not counted above"
        );
    }
}
