//! Moves the agents from a starting arrangement, one at a time, until the fit converges.
//!
//! Both phases use Nelder and Mead's simplex. Each run of the simplex moves one agent while all
//! others are fixed (block coordinate descent), because a simplex over more than a few dozen
//! components does not converge. A *sweep* moves every agent once. Sweeps are repeated until a
//! sweep hardly lowers the cost.

use crate::gnp::locate::simplex::{SimplexError, StopRule};
use crate::gnp::locate::with_switches::Descent;
use crate::gnp::objective::softening;

use super::measured::Measured;

/// Number of sweeps from every start; a sweep moves every agent once. After these sweeps, only the
/// best start continues.
const FIRST_SWEEPS: usize = 4;
/// Maximum number of sweeps.
const MOST_SWEEPS: usize = 40;
/// Sweeping ends when a sweep lowers the cost by less than this share.
const CONVERGED: f64 = 1e-3;
/// The stopping rule of the simplex that moves one agent in one sweep.
const STOP: StopRule = StopRule { steps: 150, tolerance: 1e-4 };
/// The number of the first sweep with the final step length. Sweeps are counted from 0 (`round`). A
/// fit that starts near the optimum begins with this sweep number, because long steps would be
/// useless there.
pub(super) const LAST_ROUND: usize = 11;
/// The simplex's step lengths in the first sweep, and from the sweep [`LAST_ROUND`] on, as shares
/// of the median measured distance.
const STEPS: (f64, f64) = (0.1, 0.01);

/// Sweeps [`FIRST_SWEEPS`] times from every start, then continues from the best result until it
/// converges. Returns the cost and the points.
pub(super) fn best_of(
    measured: &Measured,
    starts: Vec<Vec<Vec<f64>>>,
    descent: Descent,
) -> Result<(f64, Vec<Vec<f64>>), SimplexError> {
    let mut best: Option<(f64, Vec<Vec<f64>>)> = None;
    for mut points in starts {
        for round in 0..FIRST_SWEEPS {
            sweep(measured, &mut points, descent, step(round))?;
        }
        let cost = measured.cost(&points, descent);
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, points));
        }
    }
    let (_, points) = best.expect("there is always the scaled start");
    converge(measured, points, descent, FIRST_SWEEPS)
}

/// Sweeps until convergence. `round` is the number of the first sweep, and determines its step
/// length. Returns the cost and the points.
pub(super) fn converge(
    measured: &Measured,
    mut points: Vec<Vec<f64>>,
    descent: Descent,
    round: usize,
) -> Result<(f64, Vec<Vec<f64>>), SimplexError> {
    let mut cost = measured.cost(&points, descent);
    for further in 0..MOST_SWEEPS - FIRST_SWEEPS {
        sweep(measured, &mut points, descent, step(round + further))?;
        let lower = measured.cost(&points, descent);
        if lower >= cost * (1.0 - CONVERGED) {
            return Ok((lower, points));
        }
        cost = lower;
    }
    Ok((cost, points))
}

/// The step length of sweep number `round`, as a share of the median distance. The steps of each
/// sweep are a fifth shorter than those of the previous sweep, but never shorter than the final
/// length.
fn step(round: usize) -> f64 {
    let shrink = 0.8_f64.powi(i32::try_from(round).unwrap_or(i32::MAX));
    (STEPS.0 * shrink).max(STEPS.1)
}

/// Moves each agent once, to minimise the errors of the agent's measured distances.
fn sweep(measured: &Measured, points: &mut [Vec<f64>], descent: Descent, step: f64) -> Result<(), SimplexError> {
    let softening = softening(descent.scale);
    for i in 0..points.len() {
        let anchors = measured.anchors(i, points);
        let cost = |host: &[f64]| descent.loss.of(host, &anchors, softening);
        points[i] = descent.minimise(cost, &points[i], step, STOP)?;
    }
    Ok(())
}
