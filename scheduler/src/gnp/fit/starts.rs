//! The starting points of a fit: the classical multidimensional scaling of the distances, a
//! randomly perturbed copy of the scaling, and the landmarks' fit.

use rand::RngExt;
use rand::rngs::ChaCha8Rng;

use crate::gnp::locate::with_switches::Descent;

use super::mds;
use super::measured::Measured;

/// Number of randomly perturbed copies of the classical scaling.
const RESTARTS: usize = 1;
/// Maximum random shift of each component in a perturbed copy, as a share of the median distance.
const DISTURBANCE: f64 = 0.2;

/// Returns the classical scaling of the distances after subtracting the estimated heights, and
/// randomly perturbed copies of the scaling.
pub(super) fn starts(
    measured: &Measured,
    dimensions: usize,
    descent: Descent,
    rng: &mut ChaCha8Rng,
) -> Vec<Vec<Vec<f64>>> {
    let heights = if descent.height { heights(&measured.filled) } else { vec![0.0; measured.agents.len()] };
    let level: Vec<Vec<f64>> = measured
        .filled
        .iter()
        .enumerate()
        .map(|(i, row)| {
            let without = |(j, d): (usize, &f64)| if i == j { 0.0 } else { (d - heights[i] - heights[j]).max(0.0) };
            row.iter().enumerate().map(without).collect()
        })
        .collect();
    let mut points = mds::classical(&level, dimensions);
    for (point, height) in points.iter_mut().zip(heights) {
        point.push(height);
    }
    let mut all = vec![points.clone()];
    for _ in 0..RESTARTS {
        let mut disturbed = points.clone();
        let moves = if descent.height { dimensions + 1 } else { dimensions };
        for component in disturbed.iter_mut().flat_map(|point| &mut point[..moves]) {
            *component += rng.random_range(-1.0..1.0) * DISTURBANCE * descent.scale;
        }
        all.push(disturbed);
    }
    all
}

/// A first estimate of each agent's height: a quarter of the least time that a detour through the
/// agent adds to the distance between two other agents. A detour adds at least twice the agent's
/// height, so the greatest possible height is half of this time. The estimate is half of the
/// greatest possible height.
fn heights(filled: &[Vec<f64>]) -> Vec<f64> {
    let count = filled.len();
    let detour = |i: usize| {
        let pairs = (0..count).flat_map(|j| (0..j).map(move |k| (j, k))).filter(|&(j, k)| j != i && k != i);
        let least = pairs.map(|(j, k)| filled[i][j] + filled[i][k] - filled[j][k]).fold(f64::INFINITY, f64::min);
        if least.is_finite() { (least / 4.0).max(0.0) } else { 0.0 }
    };
    (0..count).map(detour).collect()
}

/// Returns a start with the landmarks at the points `landmarks`, and every other agent at the point
/// of its nearest landmark.
pub(super) fn around(measured: &Measured, landmarks: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let nearest = |row: &Vec<f64>| {
        let (best, _) = row[..landmarks.len()]
            .iter()
            .enumerate()
            .fold((0, f64::INFINITY), |(best, least), (i, &d)| if d < least { (i, d) } else { (best, least) });
        landmarks[best].clone()
    };
    let others = measured.filled[landmarks.len()..].iter().map(nearest);
    landmarks.iter().cloned().chain(others).collect()
}
