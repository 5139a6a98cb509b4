//! Weights the points of a site's cloud by how well they explain the site's measurements, and drops
//! the points of small weight.

use super::cloud::Cloud;
use super::kriging::Kriging;

/// Scale of the error of a measurement's logarithm. The error has a Student density with three
/// degrees of freedom, so that one outlier among nine measurements hardly affects the result.
const ERROR_SCALE: f64 = 0.06;
/// Maximum of z² / 3 for a standardised error z, so that the products over all measurements stay
/// finite.
const MOST_SQUARED: f64 = 2_500.0;
/// Points with a weight below this share of the greatest weight are dropped, to save work.
const LIGHTEST: f64 = 1e-4;

/// The points of one layer's cloud, without the dropped points of small weight.
#[derive(Debug)]
pub(super) struct WeightedPoints {
    /// The sum of the weights is 1.
    pub(super) weights: Vec<f64>,
    /// For each agent, the logs of the softened distances to all points.
    pub(super) logs: Vec<Vec<f64>>,
}

impl WeightedPoints {
    /// Weights the points of a cloud by the measurements `known` (an agent's index, and the log of
    /// its softened measurement). If `kriging` is given, the residuals of the measurements correct
    /// the distances to all agents. If `all` is false, only the point with the greatest weight is
    /// used.
    pub(super) fn of(cloud: &Cloud, kriging: Option<&Kriging>, known: &[(usize, f64)], all: bool) -> Self {
        let (kept, weights) = heaviest(likelihoods(cloud, known), all);
        let mut logs: Vec<Vec<f64>> = (0..cloud.agents())
            .map(|agent| {
                let towards = cloud.towards(agent);
                kept.iter().map(|&point| towards[point]).collect()
            })
            .collect();
        if let Some(kriging) = kriging {
            let from: Vec<usize> = known.iter().map(|&(agent, _)| agent).collect();
            let left: Vec<Vec<f64>> =
                known.iter().map(|&(agent, log)| logs[agent].iter().map(|computed| log - computed).collect()).collect();
            for (logs, gains) in logs.iter_mut().zip(kriging.gains(&from)) {
                for (gain, left) in gains.iter().zip(&left) {
                    for (log, left) in logs.iter_mut().zip(left) {
                        *log += gain * left;
                    }
                }
            }
        }
        Self { weights, logs }
    }

    /// The weighted median of the log distance.
    pub(super) fn median(&self, agent: usize) -> f64 {
        let mut points: Vec<(f64, f64)> = self.logs[agent].iter().copied().zip(self.weights.iter().copied()).collect();
        // The median is selected in linear time, because sorting would take most of the time of a
        // prediction.
        let (mut left, mut below, mut median) = (points.as_mut_slice(), 0.0, 0.0);
        while !left.is_empty() {
            let (low, middle, high) = left.select_nth_unstable_by(left.len() / 2, |a, b| a.0.total_cmp(&b.0));
            median = middle.0;
            let weight: f64 = low.iter().map(|(_, weight)| weight).sum();
            if below + weight >= 0.5 {
                left = low;
            } else if below + weight + middle.1 >= 0.5 {
                break;
            } else {
                below += weight + middle.1;
                left = high;
            }
        }
        median
    }

    /// The mean and the mean square of the log distance, and the mean distance.
    pub(super) fn moments(&self, agent: usize) -> (f64, f64, f64) {
        let (mut mean, mut square, mut distance) = (0.0, 0.0, 0.0);
        for (log, weight) in self.logs[agent].iter().zip(&self.weights) {
            mean += weight * log;
            square += weight * log * log;
            distance += weight * log.exp();
        }
        (mean, square, distance)
    }

    /// The mean of the log distance.
    pub(super) fn mean(&self, agent: usize) -> f64 {
        self.logs[agent].iter().zip(&self.weights).map(|(log, weight)| weight * log).sum()
    }

    /// The mean distance.
    pub(super) fn expected(&self, agent: usize) -> f64 {
        self.logs[agent].iter().zip(&self.weights).map(|(log, weight)| weight * log.exp()).sum()
    }
}

/// For each point, the product of `1 + z² / 3` over all measurements, where `z` is the standardised
/// error. The likelihood (Student's t, three degrees of freedom) is this product to the power -2.
fn likelihoods(cloud: &Cloud, known: &[(usize, f64)]) -> Vec<f64> {
    let Some(&(first, _)) = known.first() else { return Vec::new() };
    let mut products = vec![1.0; cloud.towards(first).len()];
    let per_third = 1.0 / (3.0 * ERROR_SCALE * ERROR_SCALE);
    for &(agent, log) in known {
        for (product, computed) in products.iter_mut().zip(cloud.towards(agent)) {
            let error = log - computed;
            *product *= 1.0 + (error * error * per_third).min(MOST_SQUARED);
        }
    }
    products
}

/// The indices of the points that are not dropped, and their weights, whose sum is 1.
fn heaviest(products: Vec<f64>, all: bool) -> (Vec<usize>, Vec<f64>) {
    let least = products.iter().copied().fold(f64::INFINITY, f64::min);
    let share = |product: f64| (least / product) * (least / product);
    let lightest = if all { LIGHTEST } else { 1.0 };
    let mut kept = Vec::new();
    let mut weights = Vec::new();
    for (point, product) in products.into_iter().enumerate() {
        let weight = share(product);
        if weight >= lightest {
            kept.push(point);
            weights.push(weight);
        }
    }
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
    (kept, weights)
}
