//! What a map knows of one site, whichever tier it is of: a point, or a cloud.

use crate::model::{AgentId, Rtt};

use super::{Embedding, Placement, Posterior, Prediction};

/// Where one site lies.
#[derive(Debug)]
pub enum SitePlace<'m> {
    Point(&'m Embedding, Placement),
    /// Somewhere in a cloud.
    Cloud(Posterior<'m>),
}

/// How far an agent is from the site, as the map has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictedRtt {
    /// The round trip to print, and of which relative errors are.
    pub rtt: Rtt,
    /// What agents are ranked by; `None` where the map knows points only, and the round trip ranks.
    pub expected: Option<Rtt>,
    /// How unsure that is: the standard deviation of the logarithm; `None` where the map knows
    /// points only.
    pub spread: Option<f64>,
}

impl From<Prediction> for PredictedRtt {
    fn from(prediction: Prediction) -> Self {
        Self { rtt: prediction.median, expected: Some(prediction.expected), spread: Some(prediction.spread) }
    }
}

impl SitePlace<'_> {
    /// The distance to an agent; `None` when the map does not have it, or the point is of another
    /// epoch.
    pub fn predict(&self, agent: AgentId) -> Option<PredictedRtt> {
        match self {
            Self::Point(embedding, placement) => {
                let rtt = embedding.predict(placement, embedding.placement(agent)?).ok()?;
                Some(PredictedRtt { rtt, expected: None, spread: None })
            }
            Self::Cloud(posterior) => posterior.predict(agent).map(PredictedRtt::from),
        }
    }

    /// Who of `candidates` should measure the site once so that the nearest is found, `most` at
    /// most: as [`Posterior::confirm`] chooses, or those whose point is nearest.
    pub fn confirm(&self, most: usize, candidates: &[AgentId]) -> Vec<AgentId> {
        match self {
            Self::Point(..) => {
                let mut nearest: Vec<(Rtt, AgentId)> =
                    candidates.iter().filter_map(|&agent| Some((self.predict(agent)?.rtt, agent))).collect();
                nearest.sort_unstable();
                nearest.into_iter().take(most).map(|(_, agent)| agent).collect()
            }
            Self::Cloud(posterior) => posterior.confirm(most, candidates),
        }
    }
}
