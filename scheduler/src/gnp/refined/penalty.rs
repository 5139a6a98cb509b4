//! The prediction penalty. The nearest landmark that measured a site is chosen unless another
//! agent's expected distance plus the penalty is shorter than the landmark's measured distance.
//!
//! The shortest of many predictions is usually too short (the winner's curse: Capen, Clapp and
//! Campbell 1971). The nearest landmark's distance is measured, not predicted, so it is not usually
//! too short.
//!
//! The best penalty depends on the network, so it is chosen by holding out agents as sites. The
//! held-out agents are located by the current landmarks, and by sets of agents drawn at random as
//! landmarks. More sets make the result depend less on chance.

use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use super::held_out::{HeldOut, HeldOutChoice, can_hold_out};
use super::kriging::{Constants, Kriging};
use super::layout::LaidOut;

/// The penalties to choose from, as shares of the map's scale (the median measured distance). With
/// a penalty greater than all of these, the nearest landmark would always be chosen.
const PARTS: [f64; 13] = [0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.08, 0.11, 0.15, 0.2, 0.3];
/// Number of drawn sets of landmarks, in addition to the current landmarks.
const DRAWN_SETS: usize = 30;
/// Two penalties count as equally good if the agents chosen with them have about the same total
/// distance: the difference is at most this share of the total distance of the nearest agents. The
/// smallest of equally good penalties is chosen, so that the predictions of a good map are used.
const BY_CHANCE: f64 = 0.01;

/// Returns the penalty in milliseconds; 0 if agents cannot be held out. The first `landmarks`
/// agents of the mesh are the landmarks.
pub(super) fn choose(mesh: &LaidOut<'_>, constants: Constants, landmarks: usize, residuals: bool) -> f64 {
    if !can_hold_out(mesh.measured) {
        return 0.0;
    }
    let Some(kriging) = Kriging::fit(mesh, constants) else { return 0.0 };
    let Some(held_out) = HeldOut::new(mesh, &kriging, residuals) else { return 0.0 };
    let mut rng = ChaCha8Rng::seed_from_u64(mesh.seed);
    let mut agents: Vec<usize> = (0..mesh.measured.agents.len()).collect();
    let mut choices = held_out.choices(&agents[..landmarks]);
    for _ in 0..DRAWN_SETS {
        agents.shuffle(&mut rng);
        choices.extend(held_out.choices(&agents[..landmarks]));
    }
    smallest(&choices, mesh.measured.scale()) * mesh.measured.scale()
}

/// Returns, as a share of the scale, the smallest penalty that is as good as the best penalty (see
/// [`BY_CHANCE`]). `scale` is in milliseconds.
fn smallest(choices: &[HeldOutChoice], scale: f64) -> f64 {
    let total = |part: f64| choices.iter().map(|choice| choice.taken(part * scale)).sum::<f64>();
    let totals = PARTS.map(total);
    let least = totals.iter().copied().fold(f64::INFINITY, f64::min);
    let by_chance = BY_CHANCE * choices.iter().map(|choice| choice.nearest).sum::<f64>();
    let as_good = PARTS.iter().zip(totals).find(|(_, total)| *total <= least + by_chance);
    as_good.map_or(0.0, |(part, _)| *part)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A landmark is 50 ms away; the agent expected at 40 ms is truly at `truth` ms.
    fn predicted_nearer(truth: f64) -> HeldOutChoice {
        HeldOutChoice { landmark: 50.0, expected: 40.0, truth, nearest: truth.min(50.0) }
    }

    #[test]
    fn a_landmark_is_preferred_where_predictions_disappoint_and_not_where_they_hold() {
        let penalty = |truth: f64| smallest(&[predicted_nearer(truth); 20], 100.0);
        assert!(penalty(40.0).abs() < 1e-12, "{}", penalty(40.0));
        assert!((penalty(90.0) - 0.11).abs() < 1e-12, "11 ms is the first beyond 10: {}", penalty(90.0));
    }

    #[test]
    fn one_disappointment_among_many_is_chance_and_nobody_held_out_is_none() {
        let mut choices = vec![predicted_nearer(40.0); 200];
        choices.push(predicted_nearer(90.0));
        assert!(smallest(&choices, 100.0).abs() < 1e-12);
        assert!(smallest(&[], 100.0).abs() < 1e-12);
    }
}
