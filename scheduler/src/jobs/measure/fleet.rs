//! The measuring agents and the state of the mesh. The jobs `measure`, `fit` and `locate` all use
//! this module, so that they see the same fleet.
//!
//! A fleet of up to [`SMALL_FLEET`] connected agents needs no landmarks: every agent measures, and
//! agents with a beacon serve as landmarks. A larger fleet waits until landmarks are chosen.

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

pub(in crate::jobs) use crate::gnp::FEWEST_LANDMARKS;
use crate::gnp::{Embedding, SMALL_FLEET};
use crate::model::{AgentId, SessionId, WaitCause};
use crate::store::Error;
use crate::store::embeddings;
use crate::store::embeddings::landmarks::{self, ConnectedAgent};
use crate::store::measurements::{self, MeshMeasurement, quarantines};

/// A landmark is fitted only if its round trips with at least this many other landmarks are known.
const FEWEST_PARTNERS: usize = 2;

/// The connected agents, and the chosen landmarks.
#[derive(Debug)]
pub(in crate::jobs) struct Fleet {
    connected: Vec<ConnectedAgent>,
    landmarks: Vec<AgentId>,
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
    fn candidates(&self) -> Vec<AgentId> {
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

/// The state of the mesh and of the landmarks in it.
#[derive(Debug)]
pub(in crate::jobs) struct Ground {
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
    /// Whether the landmarks were chosen. If not, every suitable connected agent is a landmark.
    chosen: bool,
    /// Whether there is an alarm. Then the map cannot be trusted, and no fit will be made.
    alarmed: bool,
}

impl Ground {
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
    /// were chosen, they must be exactly those in `fitted`. In a small fleet, every present
    /// landmark must be in `fitted`, which may also contain agents that have left since.
    pub(in crate::jobs) fn holds(&self, fitted: &[AgentId]) -> bool {
        self.landmarks.iter().all(|agent| fitted.contains(agent))
            && (!self.chosen || fitted.len() == self.landmarks.len())
    }

    /// Whether a site should wait for an embedding that is expected soon. The site need not wait if
    /// the present embedding places all landmarks. This embedding may have been fitted to other
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
