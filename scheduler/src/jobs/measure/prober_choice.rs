//! Chooses the prober that measures a site next: the one with the fewest open orders.

use std::collections::{HashMap, HashSet};

use crate::model::{AgentId, SiteId};
use crate::store::measurements::site_orders::{AvailableProber, DueSite};

/// Gives each site to the prober with the fewest open orders among those that have not measured the
/// site yet. A prober gets at most `most` orders, and at most one site per address gets an order.
pub(in crate::jobs) fn spread(due: &[DueSite], mut open: HashMap<AgentId, u32>, most: u32) -> Vec<(SiteId, AgentId)> {
    let mut orders = Vec::with_capacity(due.len());
    let mut taken = HashSet::new();
    for site in due {
        let load = |prober: &&AvailableProber| open.get(&prober.prober).copied().unwrap_or(u32::MAX);
        let may = |prober: &&AvailableProber| {
            load(prober) < most && !prober.address.is_some_and(|address| taken.contains(&address))
        };
        let Some(&prober) = site.probers.iter().filter(may).min_by_key(load) else { continue };
        taken.extend(prober.address);
        open.entry(prober.prober).and_modify(|held| *held += 1);
        orders.push((site.site, prober.prober));
    }
    orders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_spread_over_probers_within_their_bounds() {
        let (a, b) = (AgentId::new(1), AgentId::new(2));
        let seen_at = |site: u8, probers: &[(AgentId, u8)]| DueSite {
            site: SiteId::new(site.into()),
            probers: probers
                .iter()
                .map(|&(prober, last)| AvailableProber { prober, address: Some([192, 0, 2, last].into()) })
                .collect(),
        };
        let at = |site: u8, last: u8| seen_at(site, &[(a, last), (b, last)]);
        let due: Vec<DueSite> = (0..6).map(|site| at(site, site)).collect();
        let orders = spread(&due, HashMap::from([(a, 0), (b, 2)]), 4);
        let given = |agent| orders.iter().filter(|(_, prober)| *prober == agent).count();
        assert_eq!((given(a), given(b)), (4, 2));
        assert_eq!(spread(&[seen_at(9, &[(a, 9)])], HashMap::from([(a, 4), (b, 0)]), 4), []);

        let neighbours = [at(1, 1), at(2, 1), at(3, 2)];
        let orders = spread(&neighbours, HashMap::from([(a, 0), (b, 0)]), 4);
        assert_eq!(orders, [(SiteId::new(1), a), (SiteId::new(3), b)], "one site an address");

        let elsewhere_for_b = [at(1, 1), seen_at(2, &[(a, 1), (b, 2)])];
        let orders = spread(&elsewhere_for_b, HashMap::from([(a, 0), (b, 3)]), 4);
        assert_eq!(orders, [(SiteId::new(1), a), (SiteId::new(2), b)], "where that prober sees it");
    }
}
