//! The posterior of one site: predicts the site's distances to all agents from the weighted points
//! of all layers.

use crate::gnp::LocateError;
use crate::gnp::distance::round_trip;
use crate::model::stats::count;
use crate::model::{AgentId, Rtt};

use super::map::{Layer, Refined};
use super::weighted_points::WeightedPoints;

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
