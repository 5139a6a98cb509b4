//! The constants of the kriging: those of a short list under which held-out agents are predicted best.

use crate::gnp::fit::Measured;

use super::Ingredients;
use super::held_out::HeldOut;
use super::kriging::{Constants, Kriging};
use super::layout::Layout;

/// From smooth and short-sighted to sharp: what real networks differ in is how far likeness reaches and how much of a
/// residual is noise.
const LIST: [Constants; 5] = [
    Constants { variance: 0.05, likeness: 0.9, length: 0.3, noise: 0.02 },
    Constants { variance: 0.02, likeness: 0.9, length: 0.45, noise: 0.005 },
    Constants { variance: 0.05, likeness: 0.95, length: 0.3, noise: 0.003 },
    Constants { variance: 0.02, likeness: 0.9, length: 0.75, noise: 0.015 },
    Constants { variance: 0.1, likeness: 0.97, length: 0.22, noise: 0.0015 },
];

/// Chooses for this mesh, of which the first `landmarks` agents are the landmarks. `softening` is milliseconds.
pub(super) fn choose(
    measured: &Measured,
    layout: &Layout,
    landmarks: usize,
    ingredients: &Ingredients,
    softening: f64,
    seed: u64,
) -> Constants {
    if !ingredients.constants {
        return LIST[0];
    }
    let landmarks: Vec<usize> = (0..landmarks).collect();
    let error = |constants: &Constants| {
        let kriging = Kriging::fit(measured, layout, *constants, softening, seed)?;
        HeldOut::new(measured, layout, &kriging, ingredients.residuals, softening, seed)?.error(&landmarks)
    };
    let scored = LIST.iter().map(|constants| (error(constants).unwrap_or(f64::INFINITY), constants));
    scored.min_by(|a, b| a.0.total_cmp(&b.0)).map_or(LIST[0], |(_, constants)| *constants)
}
