//! Selects the confirmers of a site: the agents whose measurements are expected to give the
//! greatest reduction in the site's distance to the nearest agent that has measured it.

use super::posterior::Posterior;
use super::weighted_points::WeightedPoints;
use crate::model::AgentId;
use crate::model::stats::count;

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
