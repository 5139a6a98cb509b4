//! The agents that measure sites, and which of them measures which site. The jobs `measure`, `fit`
//! and `locate` all use this module, so that they see the same fleet.
//!
//! A fleet of up to [`SMALL_FLEET`] connected agents needs no landmarks: every agent measures, and
//! agents with a beacon serve as landmarks. A larger fleet waits until landmarks are chosen.

use std::collections::{HashMap, HashSet};

use sqlx::PgConnection;

use crate::gnp::SMALL_FLEET;
use crate::model::{AgentId, SessionId, SiteId, WaitCause};
use crate::store::Error;
use crate::store::embeddings::landmarks::{self, ConnectedAgent};
use crate::store::measurements::quarantines;
use crate::store::measurements::site_orders::{AvailableProber, DueSite};

/// The connected agents, and the chosen landmarks.
#[derive(Debug)]
pub(in crate::jobs) struct Fleet {
    pub(in crate::jobs) connected: Vec<ConnectedAgent>,
    pub(in crate::jobs) landmarks: Vec<AgentId>,
    quarantined: Vec<AgentId>,
}

/// The newest session of the connected agents, and the chosen landmarks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FleetVersion {
    newest: Option<SessionId>,
    landmarks: Vec<AgentId>,
}

impl Fleet {
    pub(in crate::jobs) async fn read(conn: &mut PgConnection) -> Result<Self, Error> {
        let landmarks = landmarks::list(conn).await?.into_iter().map(|landmark| landmark.agent).collect();
        let quarantined = quarantines::open(conn).await?.into_iter().map(|held| held.agent).collect();
        Ok(Self { connected: landmarks::connected(conn).await?, landmarks, quarantined })
    }

    /// The version changes when an agent connects or other landmarks are chosen, because further
    /// pairs of agents may then be due to be measured.
    pub(super) fn version(&self) -> FleetVersion {
        FleetVersion {
            newest: self.connected.iter().map(|connected| connected.session).max(),
            landmarks: self.landmarks.clone(),
        }
    }

    /// The connected agents that measure sites, or the reason why there are none.
    pub(in crate::jobs) fn probers(&self) -> Result<Vec<AgentId>, WaitCause> {
        let agents = self.connected.iter().map(|connected| connected.agent);
        let probers: Vec<AgentId> = match (self.landmarks.is_empty(), self.connected.len()) {
            (true, 0) => return Err(WaitCause::NoAgent),
            (true, count) if count > SMALL_FLEET => return Err(WaitCause::NoLandmarks),
            (true, _) => agents.collect(),
            (false, _) => agents.filter(|agent| self.landmarks.contains(agent)).collect(),
        };
        if probers.is_empty() {
            return Err(WaitCause::LandmarksAway);
        }
        let believed = self.believed(probers);
        if believed.is_empty() { Err(WaitCause::AllQuarantined) } else { Ok(believed) }
    }

    /// The agents that may be fitted as landmarks; empty in a large fleet without chosen landmarks.
    pub(in crate::jobs) fn candidates(&self) -> Vec<AgentId> {
        if !self.landmarks.is_empty() {
            return self.believed(self.landmarks.clone());
        }
        if self.connected.len() > SMALL_FLEET {
            return Vec::new();
        }
        let reachable = self.connected.iter().filter(|connected| connected.has_beacon);
        self.believed(reachable.map(|connected| connected.agent).collect())
    }

    fn believed(&self, mut agents: Vec<AgentId>) -> Vec<AgentId> {
        agents.retain(|agent| !self.quarantined.contains(agent));
        agents
    }
}

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
