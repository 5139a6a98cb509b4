//! The map of one draw, in any tier. Fits maps and locates sites as the scheduler does.

use super::Settings;
use crate::gnp::{self, Embedding, FEWEST_LANDMARKS, FitError, Mesh, Refined, SitePlace, Tier};
use crate::model::{AgentId, EmbeddingEpoch, Rtt};

/// A landmark is used in a fit only if it has a measured distance to at least this many other
/// landmarks, as in the scheduler.
const FEWEST_PARTNERS: usize = 2;

#[derive(Debug)]
pub(super) enum Map {
    /// One point per host.
    Plain(Embedding),
    /// A cloud of points per site.
    Refined(Refined),
}

impl Map {
    /// Fits a map to the landmarks with enough distances. As in a real scheduler, there is no map
    /// (`None`) if there are too few of these landmarks, or if the mesh does not connect them.
    pub(super) fn fit(
        mesh: &Mesh,
        landmarks: &[AgentId],
        settings: &Settings,
        seed: u64,
    ) -> Result<Option<Self>, FitError> {
        let landmarks = fittable(mesh, landmarks);
        if landmarks.len() < FEWEST_LANDMARKS {
            return Ok(None);
        }
        match Self::fit_all(mesh, &landmarks, settings, seed) {
            Err(FitError::UnmeasuredLandmark { .. } | FitError::Disconnected { .. }) => Ok(None),
            fitted => fitted.map(Some),
        }
    }

    fn fit_all(mesh: &Mesh, landmarks: &[AgentId], settings: &Settings, seed: u64) -> Result<Self, FitError> {
        match settings.tier {
            Tier::Gnp | Tier::Plain => {
                let (epoch, switches) = (EmbeddingEpoch::new(1), settings.plain_switches());
                let dimensions = settings.dimensions().min(landmarks.len() - 1);
                gnp::fit_with(switches, None, epoch, mesh, landmarks, dimensions, seed).map(Self::Plain)
            }
            Tier::Refined => Refined::new(mesh, landmarks, &settings.refined_switches(), seed).map(Self::Refined),
        }
    }

    /// Locates a site from measurements. Returns `None` if fewer than [`FEWEST_LANDMARKS`] agents
    /// of the map measured the site, as in the scheduler.
    pub(super) fn locate(&self, measured: &[(AgentId, Rtt)]) -> Option<SitePlace<'_>> {
        let maps = |agent: AgentId| match self {
            Self::Plain(embedding) => embedding.placement(agent).is_some(),
            Self::Refined(map) => map.agents().contains(&agent),
        };
        if measured.iter().filter(|(agent, _)| maps(*agent)).count() < FEWEST_LANDMARKS {
            return None;
        }
        match self {
            Self::Plain(embedding) => Some(SitePlace::Point(embedding, embedding.locate(measured).ok()?)),
            Self::Refined(map) => Some(SitePlace::Cloud(map.locate(measured).ok()?)),
        }
    }
}

/// The landmarks with a measured distance to at least [`FEWEST_PARTNERS`] other landmarks.
fn fittable(mesh: &Mesh, landmarks: &[AgentId]) -> Vec<AgentId> {
    let partners = |agent: AgentId| landmarks.iter().filter(|&&other| mesh.distance(agent, other).is_some()).count();
    landmarks.iter().copied().filter(|&agent| partners(agent) >= FEWEST_PARTNERS).collect()
}
