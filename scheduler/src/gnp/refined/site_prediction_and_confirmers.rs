//! Predicts a site's round trips to all agents, from a point on the plain map or a cloud of points
//! on the refined map, and selects the confirmers: the agents whose measurements are expected to
//! give the greatest reduction in the site's distance to the nearest agent that has measured it.

use crate::gnp::mesh_and_distance::round_trip;
use crate::gnp::{Embedding, LocateError, Placement};
use crate::model::stats::count;
use crate::model::{AgentId, Rtt};

use super::cloud::WeightedPoints;
use super::map::{Layer, Refined};

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

/// Maximum number of measurements used per site, nearest first, to bound the work per site.
const MOST_MEASUREMENTS: usize = 64;

/// The predicted distance of one agent from the site.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The true distance is equally likely to be longer or shorter than the median.
    pub median: Rtt,
    /// The distance by which agents are ranked: the mean distance over the points of the site, plus
    /// the prediction penalty. Agents are ranked by the mean, not the median, because the mean is
    /// greater if the agent is far from some of the site's points.
    pub expected: Rtt,
    /// Standard deviation of the logarithm of the distance; 0.1 is about 10 %.
    pub spread: f64,
}

/// The distances of one site to all agents, given the site's measurements.
#[derive(Debug)]
pub struct Posterior<'a> {
    pub(super) map: &'a Refined,
    pub(super) layers: Vec<WeightedPoints>,
    /// The index of each agent that measured the site, and its softened measurement in
    /// milliseconds.
    pub(super) measured: Vec<(usize, f64)>,
}

impl Refined {
    /// Predicts the distances from one site to all agents from the site's measurements. Any located
    /// agent, not only a landmark, may have measured the site.
    pub fn locate(&self, measured: &[(AgentId, Rtt)]) -> Result<Posterior<'_>, LocateError> {
        let mut known: Vec<(usize, f64)> = measured
            .iter()
            .filter_map(|&(agent, rtt)| Some((*self.index.get(&agent)?, (rtt.as_millis_f64() + self.softening).ln())))
            .collect();
        if known.is_empty() {
            return Err(LocateError::NothingMeasured { measured: measured.len() });
        }
        // The measurements are sorted, and only one per agent is kept, so that the result does not
        // depend on the order of `measured`.
        known.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        known.dedup_by_key(|(agent, _)| *agent);
        known.sort_by(|a, b| a.1.total_cmp(&b.1));
        known.truncate(MOST_MEASUREMENTS);
        Ok(Posterior::of(self, &known))
    }
}

impl<'a> Posterior<'a> {
    /// Weights the points of every layer (there is a layer for each number of dimensions). `known`
    /// contains the index of each measuring agent, and the log of its softened measurement.
    fn of(map: &'a Refined, known: &[(usize, f64)]) -> Self {
        let weigh = |layer: &Layer| {
            let kriging = layer.kriging.as_ref().filter(|_| map.ingredients.residuals);
            WeightedPoints::of(&layer.cloud, kriging, known, map.ingredients.cloud)
        };
        let layers = map.layers.iter().map(weigh).collect();
        Self { map, layers, measured: known.iter().map(|&(agent, log)| (agent, log.exp())).collect() }
    }

    /// Predicts the distance to one agent; `None` if the agent is not in the map.
    pub fn predict(&self, agent: AgentId) -> Option<Prediction> {
        let agent = *self.map.index.get(&agent)?;
        let layers = count(self.layers.len());
        let (mut median, mut expected, mut variance) = (0.0, 0.0, 0.0);
        for layer in &self.layers {
            let (mean, square, mean_exp) = layer.moments(agent);
            median += layer.median(agent) / layers;
            expected += mean_exp.ln() / layers;
            variance += (square - mean * mean).max(0.0) / layers;
        }
        let soft = self.map.softening;
        let ranked = if self.map.ingredients.expectation { expected } else { median };
        let expected = round_trip(ranked.exp() - soft + self.map.penalty);
        Some(Prediction { median: round_trip(median.exp() - soft), expected, spread: variance.sqrt() })
    }
}

/// Minimum gain of a confirmer. The gain is the share by which the confirmer's measurement is
/// expected to lower the distance to the nearest agent that has measured the site. If the gain is
/// below this minimum, an agent that has measured the site, or was selected earlier, is nearer at
/// every point of the cloud, so the measurement cannot change the choice. With a larger minimum,
/// fewer sites would be probed, but the chosen agents would be farther away (`docs/gnp.md`, section
/// 7).
const LEAST_GAIN: f64 = 1e-6;

impl Posterior<'_> {
    /// Selects up to `k` of `candidates` to measure the site once. The selection minimises the
    /// expected distance from the site to the nearest agent that will then have measured it. The
    /// agents are selected one by one (greedy), until no remaining candidate lowers the expected
    /// distance.
    pub fn confirm(&self, k: usize, candidates: &[AgentId]) -> Vec<AgentId> {
        let nearest = self.measured.iter().map(|&(_, distance)| distance).fold(f64::INFINITY, f64::min);
        let mut least: Vec<Vec<f64>> = self.layers.iter().map(|layer| vec![nearest; layer.weights.len()]).collect();
        let mut free: Vec<usize> = candidates.iter().filter_map(|agent| self.map.index.get(agent)).copied().collect();
        free.sort_unstable();
        free.dedup();
        let mut chosen = Vec::with_capacity(k.min(free.len()));
        let layers = count(self.layers.len());
        let mut so_far = layers * nearest.ln();
        while chosen.len() < k && !free.is_empty() {
            let expected = |agent: usize| -> f64 {
                self.layers.iter().zip(&least).map(|(layer, least)| layer.expected_least(agent, least).ln()).sum()
            };
            let costs: Vec<f64> = free.iter().map(|&agent| expected(agent)).collect();
            let best = (0..free.len()).min_by(|&a, &b| costs[a].total_cmp(&costs[b])).unwrap_or(0);
            if so_far - costs[best] < LEAST_GAIN * layers {
                break;
            }
            so_far = costs[best];
            let agent = free.remove(best);
            chosen.push(self.map.agents[agent]);
            for (layer, least) in self.layers.iter().zip(&mut least) {
                for (least, log) in least.iter_mut().zip(&layer.logs[agent]) {
                    *least = least.min(log.exp());
                }
            }
        }
        chosen
    }
}

impl WeightedPoints {
    /// The mean, over the points, of the minimum of the agent's distance and the point's value in
    /// `least`.
    fn expected_least(&self, agent: usize, least: &[f64]) -> f64 {
        let points = self.logs[agent].iter().zip(&self.weights).zip(least);
        points.map(|((log, weight), least)| weight * log.exp().min(*least)).sum()
    }
}
