//! The landmarks that can be fitted: those with enough measured round trips. The jobs `fit` and
//! `locate` both use this module, so that they agree on whether a map is valid or expected soon.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::gnp::{Embedding, FEWEST_LANDMARKS};
use crate::jobs::measure::Fleet;
use crate::model::AgentId;
use crate::store::measurements::{self, MeshMeasurement, quarantines};
use crate::store::{Error, embeddings};

/// A landmark is fitted only if its round trips with at least this many other landmarks are known.
const FEWEST_PARTNERS: usize = 2;

/// The state of the mesh and of the landmarks in it.
#[derive(Debug)]
pub(in crate::jobs) struct MeshState {
    /// The landmarks with enough round trips to be fitted, in the order in which they were chosen.
    pub(in crate::jobs) landmarks: Vec<AgentId>,
    /// Whether a connected landmark has not tried to measure another landmark's beacon yet.
    pub(in crate::jobs) landmark_gaps: bool,
    /// Whether a connected agent has not tried to measure a landmark's beacon yet.
    pub(in crate::jobs) agent_gaps: bool,
    /// The time at which the mesh was read.
    pub(in crate::jobs) as_of: DateTime<Utc>,
    /// Number of landmarks that have been measured or can still be measured.
    reachable: usize,
    /// Whether landmarks were chosen. If none were chosen, every suitable connected agent is a
    /// landmark.
    chosen: bool,
    /// Whether there is an alarm. During an alarm the map is not trusted, and no fit is made.
    alarmed: bool,
}

impl MeshState {
    pub(in crate::jobs) async fn survey(conn: &mut PgConnection, fleet: &Fleet) -> Result<Self, Error> {
        let as_of = embeddings::clock(conn).await?;
        let candidates = fleet.candidates();
        // Reads only the round trips between these agents, because the whole mesh has a row for
        // each pair of agents.
        let landmarks = fittable(&candidates, &measurements::mesh_among(conn, &candidates).await?);
        let beacons: Vec<AgentId> = fleet
            .connected
            .iter()
            .filter(|connected| connected.has_beacon && candidates.contains(&connected.agent))
            .map(|connected| connected.agent)
            .collect();
        let connected: Vec<AgentId> = fleet.connected.iter().map(|connected| connected.agent).collect();
        let connected_candidates: Vec<AgentId> =
            connected.iter().copied().filter(|agent| candidates.contains(agent)).collect();
        let landmark_gaps = !measurements::mesh_gaps(conn, &connected_candidates, &beacons, 1).await?.is_empty();
        let agent_gaps = !measurements::mesh_gaps(conn, &connected, &beacons, 1).await?.is_empty();
        let reachable = candidates.iter().filter(|agent| landmarks.contains(agent) || beacons.contains(agent)).count();
        let alarmed = quarantines::alarm(conn).await?.is_some();
        let chosen = !fleet.landmarks.is_empty();
        Ok(Self { landmarks, landmark_gaps, agent_gaps, as_of, reachable, chosen, alarmed })
    }

    /// Whether an embedding that was fitted to the landmarks `fitted` is still valid. If landmarks
    /// were chosen, they must be exactly those in `fitted`. In a small fleet, every current
    /// landmark must be in `fitted`, which may also contain agents that have since left.
    pub(in crate::jobs) fn holds(&self, fitted: &[AgentId]) -> bool {
        self.landmarks.iter().all(|agent| fitted.contains(agent))
            && (!self.chosen || fitted.len() == self.landmarks.len())
    }

    /// Whether a site should wait for an embedding that is expected soon. The site need not wait if
    /// the current embedding places all landmarks. This embedding may have been fitted to other
    /// landmarks, for example before a lost landmark was replaced.
    pub(in crate::jobs) fn awaits_fit(&self, present: Option<&Embedding>) -> bool {
        if self.alarmed {
            return false;
        }
        if self.landmark_gaps {
            return self.reachable >= FEWEST_LANDMARKS;
        }
        let serves = |map: &Embedding| self.landmarks.iter().all(|landmark| map.placement(*landmark).is_some());
        self.landmarks.len() >= FEWEST_LANDMARKS && !present.is_some_and(serves)
    }
}

/// Returns the agents in `candidates` that can be fitted as landmarks. Each of them has round trips
/// in the mesh, in either direction, with at least [`FEWEST_PARTNERS`] other agents in
/// `candidates`.
fn fittable(candidates: &[AgentId], mesh: &[MeshMeasurement]) -> Vec<AgentId> {
    let mut partners: BTreeMap<AgentId, BTreeSet<AgentId>> = BTreeMap::new();
    for pair in mesh {
        if candidates.contains(&pair.prober) && candidates.contains(&pair.target) {
            partners.entry(pair.prober).or_default().insert(pair.target);
            partners.entry(pair.target).or_default().insert(pair.prober);
        }
    }
    let enough = |agent: &AgentId| partners.get(agent).is_some_and(|known| known.len() >= FEWEST_PARTNERS);
    candidates.iter().copied().filter(enough).collect()
}
