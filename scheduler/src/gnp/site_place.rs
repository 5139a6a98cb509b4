//! The place of one site: a point on the plain map, or a cloud of points on the refined map.

use crate::model::{AgentId, Rtt};

use super::{Embedding, Placement, Posterior, Prediction};

#[derive(Debug)]
pub enum SitePlace<'m> {
    Point(&'m Embedding, Placement),
    Cloud(Posterior<'m>),
}

/// The predicted distance of an agent from the site.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PredictedRtt {
    /// The round trip that is displayed, and from which relative errors are computed.
    pub rtt: Rtt,
    /// The value by which agents are ranked; `None` in the plain map, which ranks agents by `rtt`.
    pub expected: Option<Rtt>,
    /// The uncertainty of the prediction: the standard deviation of the round trip's logarithm.
    /// `None` in the plain map.
    pub spread: Option<f64>,
}

impl From<Prediction> for PredictedRtt {
    fn from(prediction: Prediction) -> Self {
        Self { rtt: prediction.median, expected: Some(prediction.expected), spread: Some(prediction.spread) }
    }
}

impl SitePlace<'_> {
    /// Predicts the distance to an agent; `None` if the agent is not in the map, or if the site's
    /// point belongs to another epoch.
    pub fn predict(&self, agent: AgentId) -> Option<PredictedRtt> {
        match self {
            Self::Point(embedding, placement) => {
                let rtt = embedding.predict(placement, embedding.placement(agent)?).ok()?;
                Some(PredictedRtt { rtt, expected: None, spread: None })
            }
            Self::Cloud(posterior) => posterior.predict(agent).map(PredictedRtt::from),
        }
    }

    /// Selects up to `most` of the candidates to measure the site once, so that the site's nearest
    /// agent is known with more certainty. On the refined map, [`Posterior::confirm`] selects the
    /// agents. On the plain map, the agents nearest to the site's point are selected.
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
