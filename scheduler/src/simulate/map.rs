//! The map of one draw, in any tier. It is fitted, and locates sites, as in the scheduler.

use super::Settings;
use crate::gnp::{self, Embedding, FEWEST_LANDMARKS, FitError, Mesh, Refined, SitePlace, Tier};
use crate::model::{AgentId, EmbeddingEpoch, Rtt};

/// Minimum number of other landmarks with which a landmark must share a round trip, as in
/// the scheduler.
const FEWEST_PARTNERS: usize = 2;

/// A fitted map.
#[derive(Debug)]
pub(super) enum Map {
    /// One point per host.
    Plain(Embedding),
    /// A cloud of points per site.
    Refined(Refined),
}

impl Map {
    /// Fits a map to the landmarks that share enough round trips. Returns `None` if there are too
    /// few of these, or if the mesh does not connect them. The scheduler has no map then either.
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

    /// Locates a site from the landmarks' measurements; `None` if there are too few, as in
    /// the scheduler.
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

/// The landmarks that share a round trip with at least [`FEWEST_PARTNERS`] other landmarks.
fn fittable(mesh: &Mesh, landmarks: &[AgentId]) -> Vec<AgentId> {
    let partners = |agent: AgentId| landmarks.iter().filter(|&&other| mesh.distance(agent, other).is_some()).count();
    landmarks.iter().copied().filter(|&agent| partners(agent) >= FEWEST_PARTNERS).collect()
}
