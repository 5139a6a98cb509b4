//! The agents that measure sites. The jobs `measure`, `fit`
//! and `locate` all use this module, so that they see the same fleet.
//!
//! A fleet of up to [`SMALL_FLEET`] connected agents needs no landmarks: every agent measures, and
//! agents with a beacon serve as landmarks. A larger fleet waits until landmarks are chosen.

use sqlx::PgConnection;

use crate::gnp::SMALL_FLEET;
use crate::model::{AgentId, SessionId, WaitCause};
use crate::store::Error;
use crate::store::embeddings::landmarks::{self, ConnectedAgent};
use crate::store::measurements::quarantines;

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
